"""Embeds validation pairs with the engine in training; each rank embeds a share of every set.

Shapes: P pairs, n pairs of this rank, N images, B batch, E embedding, H, W image size.
"""

from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from itertools import islice

import numpy as np

from partial_fc.evaluation.validation_set import PairsOfRank
from partial_fc.inference.distances import squared_distances

from .engine import Engine
from .results import PairFigures

Embed = Callable[..., np.ndarray]  # as Engine.embed
PARTS = 20  # of a set; between two of them the ranks ask whether one has to stop


class Embedder:
    """Embeds validation pairs on all ranks, which exchange only two numbers per pair.

    A rank keeps the encoded images of its own pairs in memory, and the pixels of two batches at a time.

    Args:
        engine: in training.
        batch_size, image_size: B and H = W of its batches.
        mirrored: add the embedding of the mirror image, as for faces.
        averaged: name of a set that the moving average of the weights embeds -> set with the same pairs.

    Attributes:
        pairs: name -> PairsOfRank of the sets read so far.
    """

    def __init__(
        self,
        engine: Engine,
        batch_size: int,
        image_size: int,
        mirrored: bool = True,
        averaged: Mapping[str, str] | None = None,
    ):
        self.engine, self.averaged = engine, averaged or {}
        self.collectives = engine.collectives
        self.batch_size = batch_size
        self.image_size = image_size
        self.mirrored = mirrored
        self.pairs: dict[str, PairsOfRank] = {}

    def __call__(self, name: str, path: str) -> PairFigures:
        """Embeds all pairs of a set, on all ranks together.

        Collectives: those of prepare in the first call; those of Engine.average_statistics; PARTS times all-gather
        ``status.embed.<name>`` and all-reduce ``stop``; all-gathers ``status.compare.<name>`` and ``pairs.<name>``.

        Args:
            name: of the set.
            path: of its ``.bin``, the same on every rank.

        Raises:
            JobError: On every rank, if one reads a damaged file or image.
            StopRequested: On every rank, if one was asked to stop.
        """
        if name not in self.pairs:
            self.prepare(name, path)
        self.engine.average_statistics()
        pairs = self.pairs[name]
        embed = partial(self.engine.embed, averaged=True) if name in self.averaged else self.engine.embed
        share = self._embed_share(name, pairs, embed)
        compared = self.collectives.run_on_all_ranks(f"compare.{name}", lambda: self._compare_modes(pairs, embed))
        shares, agreements = zip(*self.collectives.gather_object(f"pairs.{name}", (share, compared)))
        distance, lengths = np.concatenate(shares).T
        return PairFigures(distance, pairs.issame, float(lengths.mean()), float(np.concatenate(agreements).mean()))

    def prepare(self, name: str, path: str) -> PairsOfRank:
        """Reads this rank's share of a set, and decodes each image once to find damaged ones.

        Collectives: all-gather ``status.read.<name>``.

        Raises:
            JobError: On every rank, if a file or an image is damaged.
        """
        same = self.pairs.get(self.averaged.get(name, ""))
        self.pairs[name] = self.collectives.run_on_all_ranks(f"read.{name}", lambda: same or self._read(name, path))
        return self.pairs[name]

    def _read(self, name: str, path: str) -> PairsOfRank:
        pairs = PairsOfRank.read(name, path, self.collectives.rank, self.collectives.size)
        for start in range(0, len(pairs.images), self._step()):
            self.collectives.report_progress()
            self._decode(pairs, start)
        return pairs

    def _embed_share(self, name: str, pairs: PairsOfRank, embed: Embed) -> np.ndarray:
        """Returns (n, 2) float64: squared distance, and mean norm of the embeddings, of each pair of this rank."""
        figures = [np.empty((0, 2))]  # for a rank without pairs
        with closing(self._batches(pairs)) as batches:
            length = -(-len(range(0, len(pairs.images), self._step())) // PARTS)
            for _ in range(PARTS):
                # No collective inside a part: a rank that fails would not take part in it.
                figures += self.collectives.run_on_all_ranks(
                    f"embed.{name}", lambda: [self._figures(pixels, embed) for pixels in islice(batches, length)]
                )
                # A whole set takes minutes on a CPU, and who asks to stop waits for seconds.
                self.collectives.end_if_stopped()
        return np.concatenate(figures)

    def _batches(self, pairs: PairsOfRank) -> Generator[np.ndarray, None, None]:
        """Yields the pixels of this rank's images; the next batch is decoded while the network computes."""
        with ThreadPoolExecutor(1) as thread:
            decoded = [thread.submit(self._decode, pairs, 0)]
            for start in range(0, len(pairs.images), self._step()):
                pixels = decoded.pop().result()
                decoded.append(thread.submit(self._decode, pairs, start + self._step()))
                yield pixels

    def _compare_modes(self, pairs: PairsOfRank, embed: Embed) -> np.ndarray:
        """Returns (N,) float64, the cosine between both modes' embeddings of each image in this rank's first batch."""
        pixels = self._decode(pairs, 0)
        if not len(pixels):
            return np.empty(0)
        batch = np.resize(pixels, (self.batch_size, *pixels.shape[1:]))  # repeats the first images if there are fewer
        evaluated, trained = embed(batch), embed(batch, batch_statistics=True)
        return 1 - squared_distances(evaluated, trained) / 2

    def _step(self) -> int:
        """Returns the number of images per step: whole pairs, also with a batch of one image."""
        return max(2, self.batch_size // 2 * 2)

    def _decode(self, pairs: PairsOfRank, start: int) -> np.ndarray:
        return pairs.decode(start, min(start + self._step(), len(pairs.images)), self.image_size)

    def _figures(self, pixels: np.ndarray, embed: Embed) -> np.ndarray:
        self.collectives.report_progress()
        views = [pixels, pixels[:, :, ::-1]] if self.mirrored else [pixels]
        embeddings = np.stack([self._embed(view, embed) for view in views])
        lengths = np.linalg.norm(embeddings, axis=2).mean(axis=0)
        total = embeddings.sum(axis=0)
        return np.stack([squared_distances(total[0::2], total[1::2]), lengths.reshape(-1, 2).mean(axis=1)], axis=1)

    def _embed(self, pixels: np.ndarray, embed: Embed) -> np.ndarray:
        """Returns (N, E) float64 for pixels (N, H, W, 3)."""
        parts = [embed(pixels[i : i + self.batch_size]) for i in range(0, len(pixels), self.batch_size)]
        return np.concatenate(parts).astype(np.float64)
