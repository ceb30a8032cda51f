"""Order of images and random pixels: functions of seed, epoch and image, whatever the number of ranks."""

import numpy as np
import pytest

from partial_fc.data.order import check_batch, epoch_entries, rank_places, uniform_draws


@pytest.mark.parametrize(
    "batch, size, what", [(0, 1, "at least 1, got 0"), (-3, 2, "got -3"), (26, 4, "needs 104 images")]
)
def test_batches_that_cannot_be(batch, size, what):
    check_batch(100, 25, 4)
    with pytest.raises(ValueError, match=what):
        check_batch(100, batch, size)


def test_ranks_share_the_global_batch_in_order():
    for size, batch in ((1, 12), (2, 6), (3, 4)):
        parts = [rank_places(24, batch, rank) for rank in range(size)]
        assert np.concatenate(parts).tolist() == list(range(24, 36))


def test_an_epochs_order():
    everything = np.arange(1000)
    first = epoch_entries(1000, True, 3, 0, everything)
    assert first.dtype == np.int64 and sorted(first.tolist()) == everything.tolist()
    assert (first[200:300] == epoch_entries(1000, True, 3, 0, everything[200:300])).all()
    for seed, epoch in ((3, 1), (4, 0), (0, 3)):
        assert np.mean(first == epoch_entries(1000, True, seed, epoch, everything)) < 0.02
    assert epoch_entries(5, False, 3, 1, np.arange(2, 5)).tolist() == [2, 3, 4]


def test_draws_depend_on_seed_epoch_image_and_number_only():
    positions = np.array([5, 16_777_217, 0, 2**40])
    draws = uniform_draws(7, 2, positions, 4)
    assert draws.shape == (4, 4) and len(np.unique(draws)) == 16
    assert (uniform_draws(7, 2, positions[::-1], 4) == draws[::-1]).all()
    assert (uniform_draws(7, 2, positions, 2) == draws[:, :2]).all()
    others = [uniform_draws(8, 2, positions, 4), uniform_draws(7, 3, positions, 4), uniform_draws(2, 7, positions, 4)]
    assert all((other != draws).all() for other in others)


def test_draws_are_uniform_and_independent():
    """Bounds are five standard deviations of the mean, the variance's and the correlations' estimates."""
    count = 20000
    table = np.concatenate(
        [uniform_draws(1, epoch, np.arange(count), 3).T for epoch in (0, 1)]
        + [uniform_draws(2, 0, np.arange(count), 1).T]
    )
    assert table.min() >= 0 and table.max() < 1
    assert np.abs(table.mean(axis=1) - 0.5).max() < 5 * np.sqrt(1 / 12 / count)
    assert np.abs(np.corrcoef(table) - np.eye(len(table))).max() < 5 / np.sqrt(count)
    neighbours = [np.corrcoef(row[:-1], row[1:])[0, 1] for row in table]
    assert np.abs(neighbours).max() < 5 / np.sqrt(count)
