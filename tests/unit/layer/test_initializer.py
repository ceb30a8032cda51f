import numpy as np

from partial_fc.layer.initializer import BLOCK, center_blocks


def initial_centers(start, stop, embedding_size, seed):
    """All blocks of center_blocks in one array."""
    centers = np.full((stop - start, embedding_size), np.nan, np.float32)
    for row, block in center_blocks(start, stop, embedding_size, seed):
        centers[row : row + len(block)] = block
    return centers


def test_centers_do_not_depend_on_the_shard():
    undivided = initial_centers(0, 2 * BLOCK + 10, 8, seed=3)
    for start, stop in ((0, 5), (BLOCK - 1, BLOCK + 1), (17, 2 * BLOCK + 10), (BLOCK, BLOCK)):
        np.testing.assert_array_equal(initial_centers(start, stop, 8, seed=3), undivided[start:stop])
    assert (initial_centers(0, 5, 8, seed=4) != undivided[:5]).any()


def test_distribution():
    assert all(block.dtype == np.float32 for _, block in center_blocks(0, 3000, 8, seed=0))
    centers = initial_centers(0, 4096, 64, seed=0)
    assert abs(centers.mean()) < 1e-4  # 5 standard errors of 262,144 draws of 0.01 are 1e-4
    assert abs(centers.std() - 0.01) < 1e-4
    assert len(np.unique(centers, axis=0)) == 4096
