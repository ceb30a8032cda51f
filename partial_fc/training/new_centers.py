"""Centers of new classes from the embeddings of their items by a trained backbone.

Shapes: C classes, n classes of a block, P items of a block, E embedding.
"""

import logging
import time
from functools import partial
from typing import Any

import numpy as np

from partial_fc.checkpoint.class_map import NEW
from partial_fc.data.class_images import ClassImages
from partial_fc.distributed.consistency import arrays_digest
from partial_fc.layer.initializer import expected_norm
from partial_fc.utils.distances import normalized
from partial_fc.utils.text import plural

from .engine import Engine
from .saved_training import MEAN

BLOCK = 1024  # classes whose sums are in memory at a time
LOG_SECONDS = 30


def take_new_centers(settings: Any, class_map: np.ndarray | None, engine: Engine, data: Any) -> None:
    """Sets the centers that were not loaded to the mean directions of their classes, if ``new_centers`` is "mean".

    Collectives: all-gather ``status.class_images``, those of assert_same_on_all_ranks and set_mean_centers.

    ``class_map``: (C,) int64, the map of the loaded centers, or None if none were loaded; ``data`` has
    ``class_images()``. Raises JobError on every rank, if one cannot read an item or write a center.
    """
    if settings.new_centers != MEAN:
        return

    def prepare() -> tuple[np.ndarray, ClassImages]:
        new = np.arange(settings.num_classes) if class_map is None else np.flatnonzero(class_map == NEW)
        return new, data.class_images()

    classes, images = engine.collectives.run_on_all_ranks("class_images", prepare)
    # Each host reads the class map from its own disk, and the map determines the number of collectives.
    engine.collectives.assert_same_on_all_ranks({"new classes": arrays_digest({"classes": classes})})
    if len(classes):
        set_mean_centers(engine, images, classes, settings.batch_size)


def set_mean_centers(engine: Engine, images: ClassImages, classes: np.ndarray, batch_size: int) -> None:
    """Sets the center of each class to the direction of the mean of its items' unit embeddings.

    Its norm is the expected norm of an initial center. A class without a readable item keeps its initial center. The
    ranks share the items of BLOCK classes at a time, embed them in evaluation mode without augmentation, and add up
    their sums, so that the number of ranks affects the result by rounding only.

    Collectives: those of Engine.average_statistics; for each block all-gathers ``status.mean_embeddings``,
    ``mean_embeddings`` and ``status.new_centers``.

    Args:
        engine: engine with the backbone and the centers.
        images: images of all classes.
        classes: (n,) int64, ascending, the same on all ranks.
        batch_size: number of items that the backbone embeds at a time.

    Raises:
        JobError: On every rank, if one cannot read an item or write a center, or an embedding is not finite.
    """
    collectives, bank = engine.collectives, engine.memory_bank
    begun = logged = time.monotonic()
    total, without = plural(len(classes), "class", "classes"), 0
    # The running statistics of a checkpoint differ by rank, but all items of a class must be embedded alike.
    engine.average_statistics()
    for first in range(0, len(classes), BLOCK):
        block = classes[first : first + BLOCK]
        sums = _sum_embeddings(engine, images, block, batch_size)
        norms = np.linalg.norm(sums, axis=1)
        without += np.count_nonzero(norms == 0)
        is_local = (norms > 0) & (block >= bank.class_start) & (block < bank.class_start + bank.num_local)
        centers = sums[is_local] * (expected_norm(bank.embedding_size) / norms[is_local, None])
        write = partial(bank.set_centers, block[is_local] - bank.class_start, centers.astype(np.float32))
        collectives.run_on_all_ranks("new_centers", write)
        if collectives.rank == 0 and time.monotonic() - logged > LOG_SECONDS:
            logged = time.monotonic()
            logging.info("mean embeddings of %d of %s", first + len(block), total)
    if collectives.rank == 0:
        seconds = time.monotonic() - begun
        logging.info("new centers of %s: the mean embeddings of their items, in %.1f s", total, seconds)
        if without:
            logging.warning("new classes without a readable item, whose centers stay random: %d", without)


def _sum_embeddings(engine: Engine, images: ClassImages, classes: np.ndarray, batch_size: int) -> np.ndarray:
    """Returns on every rank (n, E) float64, the sums of the unit embeddings of all items of the classes (n,)."""
    collectives = engine.collectives
    positions, rows_of_items = images.of(classes)
    share = slice(*(len(positions) * rank // collectives.size for rank in (collectives.rank, collectives.rank + 1)))

    def embed_share() -> np.ndarray:
        sums = np.zeros((len(classes), engine.memory_bank.embedding_size))
        done = 0
        for inputs, good in images.batches(positions[share], batch_size):
            rows, done = rows_of_items[share][done : done + len(good)], done + len(good)
            if good.any():
                embeddings = engine.embed(inputs).astype(np.float64)
                if not np.isfinite(embeddings).all():
                    raise ValueError("an embedding of the backbone is not finite: take other weights")
                np.add.at(sums, rows[good], normalized(embeddings))
            collectives.report_progress()
        return sums

    sums = collectives.run_on_all_ranks("mean_embeddings", embed_share)
    touched = np.unique(rows_of_items[share])  # the only rows to send: consecutive items have few classes
    total = np.zeros_like(sums)
    for rows, values in collectives.gather_object("mean_embeddings", (touched, sums[touched])):
        total[rows] += values
    return total
