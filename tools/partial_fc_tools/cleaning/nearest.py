"""The nearest center of each embedding, exact, tile by tile, in bounded memory and on several processes.

Shapes: N embeddings, M centers, E embedding size, n embeddings and m centers of a tile.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from partial_fc.utils.process_pool import ordered_map

from .embeddings import one_thread_each

MAX_SIDE = 4096  # n and m of a tile; larger ones are no faster
LOWEST = -2.0  # below every cosine


class Nearest(NamedTuple):
    """For each embedding: the center with the highest cosine, (N,) int64, that cosine and the next one, float32.

    Of equal cosines the center with the lower number is the nearest. Without a second center the next cosine is -2.
    """

    center: np.ndarray
    best: np.ndarray
    second: np.ndarray


class Work(NamedTuple):
    """How much memory all processes may use for tiles, in bytes; the number of processes; a progress bar."""

    memory: int
    workers: int
    bar: Any

    def results(self, function: Callable[[tuple[int, int]], Any], length: int, side: int) -> Iterator[Any]:
        """Yields the results of a function for all `spans` in order; the bar counts what is done of the length."""
        with one_thread_each(self.workers):
            for (start, stop), found in ordered_map(function, spans(length, side), self.workers):
                self.bar.update(stop - start)
                yield found


def nearest(rows: str, centers: str, own: str | None, work: Work) -> Nearest:
    """Compares every embedding with every center but its own; the bar of ``work`` counts the finished ones.

    The arguments are paths of .npy files: ``rows`` (N, E) float16 or float32 and ``centers`` (M, E) float32, of length
    1; ``own`` (N,) int64, the center that an embedding is not compared with, or None.
    """
    length, size = np.load(rows, mmap_mode="r").shape
    side = tile_side(work.memory // work.workers, size)
    parts = work.results(partial(nearest_part, rows, centers, own, side), length, side)
    return Nearest(*(np.concatenate(column) for column in zip(*parts)))


def nearest_part(rows: str, centers: str, own: str | None, side: int, span: tuple[int, int]) -> Nearest:
    """Returns the result of `nearest` for a span of rows."""
    part = slice(*span)
    x = np.load(rows, mmap_mode="r")[part].astype(np.float32)
    every = np.load(centers, mmap_mode="r")
    excluded = None if own is None else np.load(own, mmap_mode="r")[part]
    found = Nearest(np.zeros(len(x), np.int64), *np.full((2, len(x)), LOWEST, np.float32))
    for first, last in spans(len(every), side):
        scores = x @ every[first:last].T
        if excluded is not None:
            inside = np.flatnonzero((excluded >= first) & (excluded < last))
            scores[inside, excluded[inside] - first] = LOWEST
        _merge(found, scores, first)
    return found


def _merge(found: Nearest, scores: np.ndarray, first: int) -> None:
    """Updates the result with the cosines (n, m) of the centers from ``first`` on."""
    every = np.arange(len(scores))
    column = scores.argmax(axis=1)
    best = scores[every, column]
    scores[every, column] = LOWEST
    second = scores.max(axis=1)
    nearer = best > found.best
    np.maximum(found.second, np.where(nearer, np.maximum(found.best, second), best), out=found.second)
    found.center[nearer] = first + column[nearer]
    found.best[nearer] = best[nearer]


def tile_side(memory: int, size: int) -> int:
    """Returns n = m of a tile of cosines that takes at most ``memory`` bytes with its embeddings of ``size`` numbers.

    Two tiles of cosines, as one is a temporary copy, the embeddings, and the centers: 4 (2 n^2 + 2 n E) bytes.
    """
    side = math.isqrt(memory // 8 + size * size // 4) - size // 2
    return max(1, min(MAX_SIDE, side))


def spans(length: int, side: int) -> Iterator[tuple[int, int]]:
    """Yields consecutive (start, stop) of at most ``side`` numbers that cover 0 .. length - 1."""
    for start in range(0, length, side):
        yield start, min(start + side, length)
