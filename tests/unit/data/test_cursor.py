"""The position in the data: the same images at any number of ranks."""

import pytest

from partial_fc.data.cursor import Cursor


def walk(cursor, batches):
    """The positions of the next batches, over the ends of epochs."""
    positions = []
    for _ in range(batches):
        try:
            positions.append(cursor.current())
        except StopIteration:
            cursor.reset()
            positions.append(cursor.current())
        cursor.advance()
    return positions


def test_the_successor_is_the_next_place():
    cursor = Cursor(23, 5)
    positions = walk(Cursor(23, 5), 9)
    assert [cursor.successor(position) for position in positions[:-1]] == positions[1:]


@pytest.mark.parametrize("images, batches", [(19, 3), (20, 4), (23, 4), (24, 4), (25, 5)])
def test_an_epoch_has_all_of_its_whole_batches(images, batches):
    assert walk(Cursor(images, 5), 11) == [(n // batches, 5 * (n % batches)) for n in range(11)]
    cursor = Cursor(images, 5)
    cursor.restore({"epoch": 0, "images": 5 * (batches - 1)}, {})
    assert cursor.current() == (0, 5 * (batches - 1))
    cursor.restore({"epoch": 0, "images": 5 * batches}, {})
    assert cursor.current() == (1, 0)


def test_a_remainder_below_the_new_batch_is_dropped():
    cursor = Cursor(24, 10)
    cursor.restore({"epoch": 3, "images": 16}, {})
    assert cursor.current() == (4, 0)


def test_reset_before_the_first_batch_changes_nothing():
    cursor = Cursor(24, 8)
    cursor.reset()
    assert cursor.current() == (0, 0)
    cursor.advance()
    cursor.reset()
    cursor.reset()
    assert cursor.current() == (1, 0)


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
