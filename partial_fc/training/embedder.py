"""Embeds held-out items with the engine in training, on all ranks.

Shapes: N items of the set, n items of a rank, B batch, E embedding.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import islice

import numpy as np

from partial_fc.data.batch import Inputs, map_inputs, num_items
from partial_fc.data.prefetch import Prefetcher
from partial_fc.layer.sharding import shard_of
from partial_fc.utils.distances import squared_distances

from .engine import Engine

Read = Callable[[int, int], Inputs]  # (start, stop) -> items start .. stop - 1
ReadRows = Callable[[np.ndarray], Inputs]  # rows -> these items
PARTS = 20  # parts of a set; after each, the ranks agree whether to stop


class Embedder:
    """The backbone during one verification: embeds items without training on them.

    Args:
        engine: engine in training; its running statistics are averaged over the ranks.
        batch_size: B.
        name: name of the set, for the names of collectives.
        averaged: whether to embed with the moving average of the weights.

    Attributes:
        collectives: between the ranks.
        name: name of the set.
    """

    def __init__(self, engine: Engine, batch_size: int, name: str, averaged: bool = False):
        self.engine, self.batch_size, self.name, self.averaged = engine, batch_size, name, averaged
        self.collectives = engine.collectives

    def __call__(self, inputs: Inputs) -> np.ndarray:
        """Returns the embeddings (N, E) float64 of N items, computed on this rank."""
        self.collectives.report_progress()
        parts = [self._batch(inputs, start) for start in range(0, num_items(inputs), self.batch_size)]
        return np.concatenate(parts).astype(np.float64)

    def embed_all(self, count: int, read: Read) -> np.ndarray:
        """Returns the embeddings (N, E) float32 of a set on every rank; each rank computes a share.

        Collectives: as `embed_share`, then all-gather ``embeddings.<name>``.

        Args:
            count: N.
            read: (start, stop) in 0 .. N -> items; called on each rank for its share.

        Raises:
            JobError: On every rank, if one fails.
            StopRequested: On every rank, if one was asked to stop.
            ValueError: On every rank, if an embedding is not finite.
        """
        shard = shard_of(count, self.collectives.rank, self.collectives.size)
        return np.concatenate(
            self._gather(shard.size, lambda start, stop: read(shard.start + start, shard.start + stop))
        )

    def embed_by_length(self, lengths: Sequence[int] | np.ndarray, read: ReadRows) -> np.ndarray:
        """Like `embed_all`, for items of different lengths.

        A batch has items of similar length, so that it needs little padding. The ranks take turns in the order of
        lengths, so that their shares take equally long.

        Args:
            lengths: (N,) lengths of the items, in any unit.
            read: (rows (n,) int64 in 0 .. N - 1, from the shortest to the longest item) -> these items, padded to one
                length, with what the backbone needs to ignore the padding, such as a mask or the lengths.
        """
        order, rank, size = np.argsort(lengths, kind="stable"), self.collectives.rank, self.collectives.size
        rows = order[rank::size]
        parts = self._gather(len(rows), lambda start, stop: read(rows[start:stop]))
        embeddings = np.empty((len(order), self.engine.memory_bank.embedding_size), np.float32)
        for other, part in enumerate(parts):
            embeddings[order[other::size]] = part
        return embeddings

    def _gather(self, count: int, read: Read) -> list[np.ndarray]:
        """Returns the embeddings (n, E) float32 of each rank's items; ``count`` and ``read`` are this rank's."""
        parts = self.embed_share(count, read, lambda inputs: self(inputs).astype(np.float32))
        empty = np.empty((0, self.engine.memory_bank.embedding_size), np.float32)  # a rank may have no items
        gathered = self.collectives.gather_object(f"embeddings.{self.name}", np.concatenate([empty, *parts]))
        if not all(np.isfinite(part).all() for part in gathered):
            raise ValueError(f"embeddings of {self.name} are not finite: has training diverged?")
        return gathered

    def embed_share(
        self, count: int, read: Read, work: Callable[[Inputs], np.ndarray], group_size: int = 1
    ) -> list[np.ndarray]:
        """Returns ``work(inputs)`` of this rank's items, about B at a time, while a thread reads the next ones.

        Collectives: PARTS times all-gather ``status.embed.<name>`` and all-reduce ``stop``.

        Args:
            count: n, which may be 0.
            read: (start, stop) in 0 .. n -> items of this rank.
            work: inputs -> the result to keep; embeds the inputs by calling this object.
            group_size: number of consecutive items to keep in one batch, such as 2 for pairs.

        Raises:
            JobError: On every rank, if one fails.
            StopRequested: On every rank, if one was asked to stop.
        """
        results: list[np.ndarray] = []
        step = self.step(group_size)
        starts = iter(range(0, count, step))
        length = -(-len(range(0, count, step)) // PARTS)

        def read_batch(start: int) -> Inputs:
            return read(min(start, count), min(start + step, count))

        with closing(Prefetcher(read_batch, lambda start: start + step, threads=1, ahead=1)) as batches:
            for _ in range(PARTS):
                # No collectives inside a part, because a rank that fails would not take part in them.
                results += self.collectives.run_on_all_ranks(
                    f"embed.{self.name}", lambda: [work(batches.get(start)) for start in islice(starts, length)]
                )
                # A large set takes minutes on a CPU, but a stop request can wait only seconds.
                self.collectives.end_if_stopped()
        return results

    def step(self, group_size: int = 1) -> int:
        """Returns the number of items that embed_share reads at a time: at most B, but at least ``group_size``."""
        return max(group_size, self.batch_size // group_size * group_size)

    def compare_modes(self, inputs: Inputs) -> np.ndarray:
        """Returns (B,) float64, the cosine between each item's embeddings in evaluation and in training mode.

        ``inputs`` are up to B items, repeated to fill the batch; no items give an empty result.
        """
        if not num_items(inputs):
            return np.empty(0)
        rows = np.resize(np.arange(num_items(inputs)), self.batch_size)
        batch = map_inputs(lambda array: array[rows], inputs)
        evaluated, trained = (
            self.engine.embed(batch, batch_statistics=mode, averaged=self.averaged) for mode in (False, True)
        )
        return 1 - squared_distances(evaluated, trained) / 2

    def _batch(self, inputs: Inputs, start: int) -> np.ndarray:
        batch = map_inputs(lambda array: array[start : start + self.batch_size], inputs)
        return self.engine.embed(batch, averaged=self.averaged)
