"""The initial class centers.

Shapes: L classes of one rank, E embedding.
"""

from collections.abc import Iterator

import numpy as np

# Classes per random stream. Only the first and the last block of a rank can contain classes of other ranks.
BLOCK = 1024
SCALE = 0.01  # standard deviation


def expected_norm(embedding_size: int) -> float:
    """Returns the root mean square of the norm of an initial center."""
    return SCALE * float(np.sqrt(embedding_size))


def center_blocks(start: int, stop: int, embedding_size: int, seed: int) -> Iterator[tuple[int, np.ndarray]]:
    """Draws the centers of the classes start .. stop-1 block by block, from N(0, SCALE^2).

    A center depends only on the seed and the class. So the initial layer is the same for any number of ranks, and
    different classes have different centers.

    Yields:
        (first row of the block, relative to ``start``; centers (at most BLOCK, E) float32).
    """
    for block in range(start // BLOCK, -(-stop // BLOCK)):
        rng = np.random.default_rng([seed, block, 0xCE])
        drawn = rng.standard_normal((BLOCK, embedding_size), dtype=np.float32)
        first, last = max(start, block * BLOCK), min(stop, (block + 1) * BLOCK)
        yield first - start, drawn[first - block * BLOCK : last - block * BLOCK] * np.float32(SCALE)
