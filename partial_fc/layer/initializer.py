"""The class centers that training starts from.

Shapes: L classes of one rank, E embedding.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

# Classes drawn from one stream. A rank draws at most two of these blocks for nothing.
BLOCK = 1024
SCALE = 0.01


def center_blocks(start: int, stop: int, embedding_size: int, seed: int) -> Iterator[tuple[int, np.ndarray]]:
    """Centers of the classes start .. stop-1, drawn from N(0, 0.01), some at a time.

    A center depends on (seed, class) alone, so the layer starts the same at any number of ranks
    and no two ranks start with the same centers.

    Yields:
        (row of the first of them, counted from ``start``; centers (at most BLOCK, E) float32).
    """
    for block in range(start // BLOCK, -(-stop // BLOCK)):
        rng = np.random.default_rng([seed, block, 0xCE])
        drawn = rng.standard_normal((BLOCK, embedding_size), dtype=np.float32)
        first, last = max(start, block * BLOCK), min(stop, (block + 1) * BLOCK)
        yield first - start, drawn[first - block * BLOCK : last - block * BLOCK] * np.float32(SCALE)
