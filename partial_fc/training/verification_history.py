"""Verification during training: the figures of one verification and the history of a validation set.

Shapes: P pairs of a validation set.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from partial_fc.data.pairs_bin import read_pairs
from partial_fc.evaluation.validation_set import raw_pixel_distances
from partial_fc.evaluation.verification import VerificationPoint, verify_distances

from .run_folder import ScalarWriter


class PairFigures(NamedTuple):
    """Figures computed from the embeddings of a validation set, the same on every rank.

    Attributes:
        distance: (P,) float64, squared distance of each pair's normalized, flip-summed embeddings.
        issame: (P,) bool.
        xnorm: mean norm of the embeddings of images and mirrored images.
        agreement: mean cosine between the embeddings of the same images in evaluation and in training mode.
    """

    distance: np.ndarray
    issame: np.ndarray
    xnorm: float
    agreement: float


def best_accuracy(points: Sequence[VerificationPoint]) -> float:
    """Returns the highest accuracy; that of the untrained network counts only if there is no other."""
    return max(point.accuracy for point in [point for point in points if point.num_update] or points)


def add_point(points: list[VerificationPoint], point: VerificationPoint) -> None:
    """Appends a point; it replaces the last one if that is of the same update, as after resuming from there."""
    if points and points[-1].num_update == point.num_update:
        points.pop()
    points.append(point)


def points_from_json(values: Iterable[Sequence]) -> list[VerificationPoint]:
    """Reads points from a checkpoint, without those of another version, which had other fields."""
    return [VerificationPoint(*value) for value in values if len(value) == len(VerificationPoint._fields)]


def log_point(name: str, point: VerificationPoint, best: float) -> None:
    """Logs one verification of the set ``name``; the first three lines are those of the original trainers."""
    for line in (
        f"XNorm: {point.xnorm:f}",
        f"Accuracy-Flip: {point.accuracy:1.5f}+-{point.std:1.5f}",
        f"Accuracy-Highest: {best:1.5f}",
        f"TAR@FAR={point.far:g}: {point.tar_at_far:.5f}   Dimensions: {point.dimensions:.1f}   "
        f"Train/eval agreement: {point.agreement:.3f}   in {point.seconds:.1f} s",
    ):
        logging.info("[%s][%d]%s", name, point.num_update, line)


def write_point(writer: ScalarWriter, name: str, point: VerificationPoint, best: float) -> None:
    """Writes the metrics of one verification as ``verification/<name>/<metric>``."""
    for metric, value in {**point._asdict(), "best": best}.items():
        if metric not in ("num_update", "far"):
            writer.add_scalar(f"verification/{name}/{metric}", value, point.num_update)


def raw_pixel_accuracy(path: str, image_size: int) -> float:
    """Returns the verification accuracy of the pixels themselves, without any network.

    Raises:
        OSError, ValueError: The set at ``path`` or an image in it cannot be read.
    """
    images, issame = read_pairs(path)
    return verify_distances(raw_pixel_distances(images, image_size, path), issame).accuracy
