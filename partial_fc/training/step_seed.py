"""Seeds of random operators that depend on the step only, so that a resumed training draws the same numbers."""

from __future__ import annotations

from collections.abc import Callable

from partial_fc.utils.hashing import mix, stream


def seed_step(seed_generators: Callable[[int], None], seed: int, rank: int, num_update: int) -> None:
    """Seeds a framework's generators for the step that follows update ``num_update``.

    MXNet cannot save the state of its generators, so a checkpoint has none. Seeding MXNet takes about 1.5 ms.

    Args:
        seed_generators: see Engine.
        seed: of the training.
        rank: of this process, so that ranks draw different numbers.
        num_update: number of updates done.
    """
    key = mix(stream(seed, rank))
    seed_generators(int((mix(key + num_update) >> 33)[0]))
