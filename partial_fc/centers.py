"""The class centers that training starts from.

Shapes: L classes of one rank, E embedding.
"""

from __future__ import annotations

import numpy as np

# Classes drawn from one stream. A rank draws at most two of these blocks for nothing.
BLOCK = 1024


def initial_centers(start: int, stop: int, embedding_size: int, seed: int, scale: float = 0.01) -> np.ndarray:
    """Centers of the classes start .. stop-1, drawn from N(0, scale).

    A center depends on (seed, class) alone, so the layer starts the same at any number of ranks
    and no two ranks start with the same centers.

    Returns:
        (stop - start, E) float32.
    """
    centers = np.empty((stop - start, embedding_size), dtype=np.float32)
    for block in range(start // BLOCK, -(-stop // BLOCK)):
        rng = np.random.default_rng([seed, block, 0xCE])
        drawn = rng.standard_normal((BLOCK, embedding_size), dtype=np.float32)
        first, last = max(start, block * BLOCK), min(stop, (block + 1) * BLOCK)
        np.multiply(
            drawn[first - block * BLOCK : last - block * BLOCK], scale, out=centers[first - start : last - start]
        )
    return centers
