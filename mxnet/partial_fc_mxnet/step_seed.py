"""Random numbers of MXNet's operators that depend on the step and not on what was drawn before."""

from __future__ import annotations

import json

import mxnet as mx

from partial_fc.utils.hashing import mix, stream

RANDOM_OPERATORS = {"Dropout", "RReLU"}


def draws(symbol: mx.sym.Symbol) -> bool:
    """Whether a network draws random numbers in training."""
    nodes = json.loads(symbol.tojson())["nodes"]
    return any(node["op"] in RANDOM_OPERATORS or node["op"].startswith(("_random", "_sample")) for node in nodes)


class StepSeed:
    """A callback that seeds MXNet for the next step, so that a resumed training draws what it would have drawn.

    MXNet does not tell the state of its generators. Seeding takes some 1.5 ms.

    Args:
        seed, rank: of this training and rank.
    """

    def __init__(self, seed: int, rank: int):
        self._key = mix(stream(seed, rank))

    def __call__(self, param) -> None:
        self.after(param.num_update)

    def after(self, num_update: int) -> None:
        """Seeds for the step that follows this update."""
        mx.random.seed(int((mix(self._key + num_update) >> 33)[0]))
