"""The position in the data: the same images at any number of ranks."""

import pytest

from partial_fc.data.cursor import Cursor


def test_a_remainder_below_the_new_batch_is_dropped():
    cursor = Cursor(24, 10)
    cursor.restore({"epoch": 3, "images": 16}, {})
    assert cursor.current() == (4, 0)


def test_another_order_is_refused():
    state = {"epoch": 1, "images": 8, "seed": 3, "shuffle": True}
    cursor = Cursor(24, 8)
    cursor.restore(state, {"seed": 3, "shuffle": True})
    with pytest.raises(ValueError, match="saved with seed=3, but now it is 4"):
        cursor.restore(state, {"seed": 4, "shuffle": True})
    with pytest.raises(ValueError, match="saved with num_images=None"):
        cursor.restore(state, {"num_images": 24})
    places = [(0, 25), (0, -1), (-1, 0), (None, None), (0, None), ("0", 8), (0, 4.5)]
    for epoch, images in places:
        with pytest.raises(ValueError, match=f"no position {images} in epoch {epoch}"):
            cursor.restore({"epoch": epoch, "images": images}, {})
    assert cursor.current() == (1, 8)
