"""1:1 verification: scores of template pairs.

Shapes: P pairs, T templates, E embedding.
"""

from typing import Any

import numpy as np

FARS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
CHUNK = 512  # pairs: their embeddings (1 MB each side) fit into the cache of a core


def pair_scores(templates: np.ndarray, left: np.ndarray, right: np.ndarray, bar: Any) -> np.ndarray:
    """Returns (P,) float32: the cosines of the rows ``left`` and ``right`` (P,) of templates (T, E) of length 1.

    ``bar`` is a progress bar, updated by the number of finished pairs.
    """
    scores = np.empty(len(left), np.float32)
    for start in range(0, len(left), CHUNK):
        part = slice(start, start + CHUNK)
        np.einsum("pe,pe->p", templates[left[part]], templates[right[part]], out=scores[part])
        bar.update(len(left[part]))
    return scores
