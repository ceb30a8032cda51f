"""Schedules in updates and in epochs."""

import pytest

import default
from partial_fc.data.cursor import Cursor
from partial_fc.training.schedule import Epochs, rate_factor, resolve_schedule, scaled_rate, value_in_epoch


def resolved(epochs, dataset="demo", **changes):
    """(settings, factor of the rates) of the PyTorch trainer."""
    settings = default.generate_config(dataset_name=dataset, changes=changes, trainer="torch")
    return resolve_schedule(settings, epochs)


def read(cursor, updates):
    """The epochs whose images the next updates read."""
    epochs = []
    for _ in range(updates):
        try:
            position = cursor.current()
        except StopIteration:
            cursor.reset()
            position = cursor.current()
        epochs.append(position[0])
        cursor.advance()
    return epochs


@pytest.mark.parametrize("images, batch", [(23, 10), (20, 10), (10, 10), (24, 1), (100, 7)])
def test_epochs_are_those_of_the_cursor(images, batch):
    epochs = Epochs(images, batch)
    expected = read(Cursor(images, batch), 60)
    assert [epochs.epoch_of(update) for update in range(1, 61)] == expected
    for epoch in range(expected[-1]):
        assert epochs.last_update(epoch + 1) == expected.index(epoch + 1)
    assert epochs.last_update(0) == 0


@pytest.mark.parametrize("before", range(9))
@pytest.mark.parametrize("batch", [1, 4, 5, 11, 23])
def test_epochs_after_a_checkpoint_of_another_batch(before, batch):
    cursor = Cursor(23, 5)
    read(cursor, before)
    state = cursor.state()
    epochs = Epochs(23, batch, before, (state["epoch"], state["images"]))
    resumed = Cursor(23, batch)
    resumed.restore(state, {})
    expected = read(resumed, 60)
    assert [epochs.epoch_of(before + update) for update in range(1, 61)] == expected
    for num_epoch in range(expected[0] + 1, expected[-1]):
        assert epochs.last_update(num_epoch) == before + expected.index(num_epoch)
    assert epochs.last_update(state["epoch"]) == before  # nothing is left to do


def test_num_epoch_decides_the_length():
    epochs = Epochs(5822653, 512)
    settings, _ = resolved(epochs, "emore")
    assert settings.max_update == 16 * 11372
    assert type(settings) is type(default.config) and settings.num_epoch == 16
    assert default.config.max_update == 32000  # the settings given stay as they are
    settings, _ = resolved(epochs, "emore", max_update=70)
    assert settings.max_update == 70


# (data set, divisions by 10 at the first update of these epochs, counted from 0)
@pytest.mark.parametrize(
    "dataset, drops", [("emore", (7, 13)), ("glint360k", (7, 11, 14, 17)), ("webface", (19, 27, 31))]
)
def test_rates_of_the_data_sets_drop_where_their_epochs_begin(dataset, drops):
    settings, factor = resolved(Epochs(30, 10), dataset)
    rates = [factor(update) for update in range(1, settings.max_update + 1)]
    expected = [0.1 ** sum(drop <= update // 3 for drop in drops) for update in range(settings.max_update)]
    assert rates == pytest.approx(expected, rel=1e-15)


def test_warm_up_in_epochs():
    _, factor = resolved(Epochs(30, 10), num_epoch=6, warmup_epoch=4, lr_epochs=[6])
    rates = [factor(update) for update in range(1, 19, 3)]
    assert rates == pytest.approx([1 / 25, 4 / 25, 9 / 25, 16 / 25, 1, 0.1])
    assert factor(3) == rates[0]


def test_a_function_of_the_user():
    _, factor = resolved(Epochs(30, 10), num_epoch=3, lr_func=lambda epoch: 1 / (epoch + 1))
    assert [factor(update) for update in (1, 3, 4, 9)] == [1, 1, 0.5, 1 / 3]
    _, factor = resolved(Epochs(30, 10), max_update=100, lr_func=[1, 0.5])
    assert [factor(update) for update in (3, 4, 100)] == [1, 0.5, 0.5]  # the last factor holds


def test_a_setting_of_one_value_or_of_one_for_each_epoch():
    assert [value_in_epoch(0.3, epoch) for epoch in (0, 7)] == [0.3, 0.3]
    assert [value_in_epoch([0.1, 0.2, 1.0], epoch) for epoch in range(5)] == [0.1, 0.2, 1.0, 1.0, 1.0]


def test_warm_up_and_divisions_in_updates():
    _, factor = resolved(Epochs(30, 10), warmup_steps=4, lr_steps=[6, 8])
    expected = [0.25, 0.5, 0.75, 1, 1, 1, 0.1, 0.1, 0.01]
    assert [factor(update) for update in range(1, 10)] == pytest.approx(expected, rel=1e-15)


def test_warm_up_in_updates_and_divisions_in_epochs():
    _, factor = resolved(Epochs(30, 10), "emore", warmup_steps=2, lr_epochs=[2])
    assert [factor(update) for update in (1, 2, 3, 4)] == [0.5, 1, 1, 0.1]
    assert rate_factor(1, warmup_steps=2) == 0.5


@pytest.mark.parametrize("images, rate", [(512, 0.1), (64, 0.0125), (1024, 0.2), (1, 0.1 / 512)])
def test_the_rate_follows_the_global_batch(images, rate):
    assert scaled_rate(0.1, images) == pytest.approx(rate)
