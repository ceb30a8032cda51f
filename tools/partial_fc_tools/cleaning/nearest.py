"""Exact search for the nearest center of each embedding, in tiles of bounded memory and on several processes.

Shapes: N embeddings, M centers, E embedding size, n embeddings and m centers of a tile.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from partial_fc.utils.process_pool import ordered_map
from partial_fc.utils.progress import progress

from .embeddings import one_thread_each

MAX_SIDE = 4096  # n and m of a tile; larger ones are no faster
LOWEST = -2.0  # below every cosine


class Nearest(NamedTuple):
    """For each embedding the center with the highest cosine; among equal cosines the one with the lower number."""

    center: np.ndarray  # (N,) int64
    best: np.ndarray  # (N,) float32, cosine to that center
    second: np.ndarray  # (N,) float32, the next highest cosine; LOWEST without a second center


class Work(NamedTuple):
    """Limits of a comparison: bytes that the tiles of all processes may use, and the number of processes."""

    memory: int
    workers: int

    def results(
        self, function: Callable[[tuple[int, int]], Any], length: int, side: int, unit: str, text: str
    ) -> Iterator[Any]:
        """Yields ``function(span)`` for all `spans` in order, with a progress bar."""
        with one_thread_each(self.workers), progress(length, unit, text) as bar:
            for (start, stop), result in ordered_map(function, spans(length, side), self.workers):
                bar.update(stop - start)
                yield result


def nearest(rows: str, centers: str, excluded: str | None, work: Work, text: str) -> Nearest:
    """Finds the nearest center of each embedding.

    Args:
        rows: path of a .npy file (N, E) float16 or float32 of length 1.
        centers: path of a .npy file (M, E) float32 of length 1.
        excluded: path of a .npy file (N,) int64, the center that each embedding is not compared with; None to
            compare all.
        work: memory and processes.
        text: description for the progress bar.
    """
    length, size = np.load(rows, mmap_mode="r").shape
    side = tile_side(work.memory // work.workers, size)
    parts = work.results(partial(nearest_part, rows, centers, excluded, side), length, side, "image", text)
    return Nearest(*(np.concatenate(column) for column in zip(*parts)))


def nearest_part(rows: str, centers: str, excluded: str | None, side: int, span: tuple[int, int]) -> Nearest:
    """Computes `nearest` for a span of rows."""
    part = slice(*span)
    x = np.load(rows, mmap_mode="r")[part].astype(np.float32)
    all_centers = np.load(centers, mmap_mode="r")
    skipped = None if excluded is None else np.load(excluded, mmap_mode="r")[part]
    result = Nearest(np.zeros(len(x), np.int64), *np.full((2, len(x)), LOWEST, np.float32))
    every = np.arange(len(x))
    for first, last in spans(len(all_centers), side):
        scores = x @ all_centers[first:last].T
        if skipped is not None:
            inside = np.flatnonzero((skipped >= first) & (skipped < last))
            scores[inside, skipped[inside] - first] = LOWEST
        column = scores.argmax(axis=1)
        best = scores[every, column]
        scores[every, column] = LOWEST
        # The new second is the higher of two: the losing best cosine, and the second cosine on the winning side.
        nearer = best > result.best
        np.maximum(
            result.second, np.where(nearer, np.maximum(result.best, scores.max(axis=1)), best), out=result.second
        )
        result.center[nearer] = first + column[nearer]
        result.best[nearer] = best[nearer]
    return result


def tile_side(memory: int, size: int) -> int:
    """Returns the side n = m of the largest tile that takes at most ``memory`` bytes; embeddings have ``size`` numbers.

    A tile needs 4 (2 n^2 + 2 n E) bytes: the cosines and a temporary copy of them, the embeddings, and the centers.
    """
    side = math.isqrt(memory // 8 + size * size // 4) - size // 2
    return max(1, min(MAX_SIDE, side))


def spans(length: int, side: int) -> Iterator[tuple[int, int]]:
    """Yields consecutive (start, stop) of at most ``side`` numbers that cover 0 .. length - 1."""
    for start in range(0, length, side):
        yield start, min(start + side, length)
