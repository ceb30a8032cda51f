"""Seeds of MXNet's random operators that depend on the step only, so that a resumed training draws the same numbers."""

from __future__ import annotations

import json

import mxnet as mx

from partial_fc.utils.hashing import mix, stream

RANDOM_OPERATORS = {"Dropout", "RReLU"}


def draws_random_numbers(symbol: mx.sym.Symbol) -> bool:
    """Whether a network contains an operator that draws random numbers in training, such as Dropout."""
    nodes = json.loads(symbol.tojson())["nodes"]
    return any(node["op"] in RANDOM_OPERATORS or node["op"].startswith(("_random", "_sample")) for node in nodes)


class StepSeed:
    """A callback that seeds MXNet's generators for the next step from (seed, rank, num_update).

    MXNet cannot save the state of its generators, so a checkpoint has none. Seeding takes about 1.5 ms.

    Args:
        seed: Seed of the training.
        rank: Rank of this process, so that ranks draw different numbers.
    """

    def __init__(self, seed: int, rank: int):
        self._key = mix(stream(seed, rank))

    def __call__(self, param) -> None:
        """Seeds the generators for the next step."""
        self.after(param.num_update)

    def after(self, num_update: int) -> None:
        """Seeds the generators for the step that follows update ``num_update``."""
        mx.random.seed(int((mix(self._key + num_update) >> 33)[0]))
