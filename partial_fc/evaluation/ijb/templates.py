"""From embeddings of images to embeddings of templates.

A template is what is known of a person at one occasion: some media, each a photo or some frames of a video. Frames of a
video say nearly the same, so the images of a media are averaged; the media are then added up, and the sum is brought
to length 1. As every image counts by 1 / (images of its media), a template is a weighted sum over images, and
no embedding of an image has to be kept: 95 MB for IJB-C's 23,124 templates instead of 961 MB.

Shapes: N images, T templates, E embedding.
"""

from __future__ import annotations

import numpy as np


def media_shares(templates: np.ndarray, media: np.ndarray) -> np.ndarray:
    """(N,) float64: 1 / (number of images that share template and media with this one).

    Media are told apart within a template only, as in the original: two templates may show the same video.
    """
    keys = templates.astype(np.int64) << 32 | media
    _, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
    shares: np.ndarray = 1 / counts[inverse.reshape(-1)]
    return shares


class TemplateSums:
    """Weighted sums of embeddings, a row a template; images in the order they are added, so any batches give the same.

    Args:
        count: T.
        norm_score: embeddings count by their length, which a network makes short for images without a clear face;
            else they are brought to length 1 first.
    """

    def __init__(self, count: int, norm_score: bool):
        self.count, self.norm_score = count, norm_score
        self.sums: np.ndarray | None = None

    def add(self, embeddings: np.ndarray, templates: np.ndarray, weights: np.ndarray) -> None:
        """Add `weights` (N,) times `embeddings` (N, E) to the rows `templates` (N,)."""
        rows = embeddings.astype(np.float64)
        if not self.norm_score:
            rows = normalized(rows)
        rows *= weights[:, None]
        if self.sums is None:
            self.sums = np.zeros((self.count, rows.shape[1]))
        for template, row in zip(templates.tolist(), rows):
            self.sums[template] += row

    def normalized(self) -> np.ndarray:
        """(T, E) float32 of length 1."""
        assert self.sums is not None
        return normalized(self.sums).astype(np.float32)


def normalized(rows: np.ndarray) -> np.ndarray:
    """Rows of length 1; a row of zeros stays (as in scikit-learn's `normalize`, which the original uses)."""
    lengths = np.sqrt(np.einsum("ne,ne->n", rows, rows))
    return rows / np.where(lengths > 0, lengths, 1.0)[:, None]
