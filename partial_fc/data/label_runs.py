"""Which image has which label, for sets whose images lie identity by identity: a few words an identity, not an image.

Shapes: N images, M runs of images with one label, P positions asked for.
"""

from __future__ import annotations

import numpy as np


class LabelRuns:
    """Runs of neighbouring images with one label.

    `starts` (M,) int64 ascending from 0, the position where each run begins; `labels` (M,) int64; `num_images` N.
    """

    def __init__(self, starts: np.ndarray, labels: np.ndarray, num_images: int):
        self.starts, self.labels, self.num_images = starts, labels, num_images

    @classmethod
    def of_labels(cls, labels: np.ndarray) -> LabelRuns:
        """The runs of the labels (N,) of all images."""
        starts = np.flatnonzero(np.append(True, labels[1:] != labels[:-1]))
        return cls(starts, labels[starts], len(labels))

    def labels_at(self, positions) -> np.ndarray:
        """labels (P,) int64 of the images at `positions` (P,)."""
        return self.labels[np.searchsorted(self.starts, positions, side="right") - 1]

    def lengths(self) -> np.ndarray:
        """(M,) int64 images in each run."""
        return np.diff(self.starts, append=self.num_images)

    def images_per_label(self, num_labels: int) -> np.ndarray:
        """(num_labels,) int64 images of each label."""
        counts = np.zeros(num_labels, np.int64)
        np.add.at(counts, self.labels, self.lengths())
        return counts

    def keep(self, kept: np.ndarray) -> KeptImages:
        """The images of the runs where `kept` (M,) bool is true."""
        return KeptImages(self.starts[kept], self.lengths()[kept])


class KeptImages:
    """Some of the runs, numbered through: image 0 .. len - 1 of those that are left, in their order."""

    def __init__(self, starts: np.ndarray, lengths: np.ndarray):
        self._starts, self._lengths, self._ends = starts, lengths, np.cumsum(lengths)
        # What to add to a number in a run to get the position: its start, less the images kept before it.
        self._shift = starts - (self._ends - lengths)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def positions(self, numbers: np.ndarray) -> np.ndarray:
        """Positions (P,) int64 in the whole set of the images `numbers` (P,)."""
        return numbers + self._shift[np.searchsorted(self._ends, numbers, side="right")]

    def after(self, position: int) -> int:
        """The kept position that follows a kept one; after the last comes the first."""
        run = int(np.searchsorted(self._starts, position, side="right")) - 1
        if position + 1 < self._starts[run] + self._lengths[run]:
            return position + 1
        return int(self._starts[(run + 1) % len(self._starts)])
