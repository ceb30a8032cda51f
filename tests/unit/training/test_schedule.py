"""Schedules in updates and in epochs."""

import math
import sys

import pytest

import default
from partial_fc.data.cursor import Cursor
from partial_fc.training.schedule import (
    Epochs,
    describe_rates,
    items_of_update,
    learning_rates,
    margin_options_by_update,
    resolve_schedule,
    step_factor,
)
from partial_fc.training.schedules import value_in_epoch


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
def test_epochs_follow_the_cursor(images, batch):
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
    assert default.config.max_update == 32000  # the settings themselves do not change
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
    _, factor = resolved(Epochs(30, 10), num_epoch=6, warmup_epoch=4, schedule="constant", warmup="quadratic")
    assert [factor(update) for update in range(1, 19, 3)] == pytest.approx([*rates[:5], 1])


def test_a_function_of_the_user():
    _, factor = resolved(Epochs(30, 10), num_epoch=3, lr_func=lambda epoch: 1 / (epoch + 1))
    assert [factor(update) for update in (1, 3, 4, 9)] == [1, 1, 0.5, 1 / 3]
    _, factor = resolved(Epochs(30, 10), max_update=100, lr_func=[1, 0.5])
    assert [factor(update) for update in (3, 4, 100)] == [1, 0.5, 0.5]  # the last factor holds


def test_a_setting_of_one_value_or_of_one_for_each_epoch():
    assert [value_in_epoch(0.3, epoch) for epoch in (0, 7)] == [0.3, 0.3]
    assert [value_in_epoch([0.1, 0.2, 1.0], epoch) for epoch in range(5)] == [0.1, 0.2, 1.0, 1.0, 1.0]


def wespeaker(update, start_epoch, fix_epoch, of_epoch, initial, final, growth):
    """The margin of WeSpeaker's MarginScheduler (wespeaker/utils/schedulers.py) in an update, from 1."""
    start, fix, iteration = (start_epoch - 1) * of_epoch, (fix_epoch - 1) * of_epoch, update - 1
    if iteration < start or iteration >= fix:
        return initial if iteration < start else final
    share = (iteration - start) / (fix - start)
    ratio = share if growth == "linear" else 1 - math.exp(share * math.log(1e-3 / (1 + 1e-6)))
    return initial + (final - initial) * ratio


def margin_options(options, epochs):
    settings, _ = resolved(epochs, margin_options=options)
    return margin_options_by_update(settings, epochs)


@pytest.mark.parametrize("growth", ["linear", "exponential"])
def test_the_margin_grows_with_each_update_as_in_wespeaker(growth):
    value = margin_options(f"m2=[[3,0.1],[6,0.5]],m1=1.0,ramp={growth}", Epochs(40, 10))
    expected = [wespeaker(update, 3, 6, 4, 0.1, 0.5, growth) for update in range(1, 41)]
    assert [value(update) for update in range(1, 41)] == [{"m2": pytest.approx(each, rel=1e-12)} for each in expected]
    assert len(set(expected)) == 13 and expected[8] == 0.1 and expected[20] == 0.5


def test_a_margin_by_epoch_and_a_ramp_of_three_points():
    value = margin_options("m1=[1,2,4],m2=[[2,0],[3,0.2],[5,0.1]]", Epochs(20, 10))
    assert [value(update)["m1"] for update in range(1, 9)] == [1, 1, 2, 2, 4, 4, 4, 4]
    m2 = [0, 0, 0, 0.1, 0.2, 0.175, 0.15, 0.125, 0.1, 0.1]
    assert [value(update)["m2"] for update in range(1, 11)] == pytest.approx(m2, rel=1e-12)
    assert margin_options("m1=2.0", Epochs(20, 10))(7) == {}


def test_a_ramp_follows_the_images_if_the_batch_size_changes():
    whole = margin_options("m2=[[1,0.0],[3,0.4]]", Epochs(40, 10))
    half = margin_options("m2=[[1,0.0],[3,0.4]]", Epochs(40, 5, 2, (0, 20)))  # after 2 updates of 10 images
    assert [half(update) for update in (3, 5, 7)] == [whole(update) for update in (3, 4, 5)]


def test_warm_up_in_updates_and_divisions_in_updates_or_epochs():
    _, factor = resolved(Epochs(30, 10), warmup_steps=4, lr_steps=[6, 8])
    expected = [0.25, 0.5, 0.75, 1, 1, 1, 0.1, 0.1, 0.01]
    assert [factor(update) for update in range(1, 10)] == pytest.approx(expected, rel=1e-15)
    assert [step_factor([6, 8], warmup_steps=4)(update) for update in range(1, 10)] == pytest.approx(expected)
    _, factor = resolved(Epochs(30, 10), "emore", warmup_steps=2, lr_epochs=[2])
    assert [factor(update) for update in (1, 2, 3, 4)] == [0.5, 1, 1, 0.1]


@pytest.mark.parametrize("batch, reference, rate", [(256, 512, 0.1), (32, 512, 0.0125), (512, 512, 0.2), (32, 0, 0.1)])
def test_the_rate_follows_the_global_batch(batch, reference, rate):
    settings, _ = resolved(Epochs(30, 10), batch_size=batch, lr=0.1, lr_reference_batch=reference)
    assert learning_rates(settings, 2) == pytest.approx((rate, rate))


def test_the_items_of_an_update_include_all_micro_batches():
    assert items_of_update({"batch_size": 8, "gradient_acc": 3}) == 24
    assert items_of_update({"batch_size": 8}) == 8  # saved by an earlier version
    settings, _ = resolved(Epochs(30, 10), batch_size=64, gradient_acc=4, lr=0.1, lr_reference_batch=512)
    assert learning_rates(settings, 2) == pytest.approx((0.1, 0.1))
    settings, _ = resolved(Epochs(30, 10), batch_size=64, lr=0.1, lr_reference_batch=512, backbone_lr=0.3)
    assert learning_rates(settings, 4) == pytest.approx((0.3, 0.05))


def test_the_rule_of_the_rates_is_described():
    settings, _ = resolved(Epochs(30, 10), memory_bank_lr=0.3)
    line = "rates: backbone 0.05, class centers 0.3 (lr 0.4 x 64 images / 512, unless set); schedule steps, warmup_step"
    assert describe_rates(settings, 1).startswith(line)


# 4 epochs of 10 updates, with one epoch of warm-up.
CURVES = [
    ("polynomial", "", lambda share: 1 - share),
    ("polynomial", "power=2", lambda share: (1 - share) ** 2),
    ("cosine", "final=0.1", lambda share: 0.1 + 0.9 * (1 + math.cos(math.pi * share)) / 2),
    ("exponential", "final=1e-3", lambda share: math.exp(share * math.log(1e-3))),
    ("constant", "", lambda share: 1),
]


@pytest.mark.parametrize("name, options, curve", CURVES)
@pytest.mark.parametrize(
    "warm_up, w", [({"warmup_epoch": 1}, 10), ({"warmup_steps": 10}, 10), ({"warmup_steps": 0}, 0)]
)
@pytest.mark.parametrize("length", [{"num_epoch": 4}, {"max_update": 40}])
def test_curves_after_a_linear_warm_up(name, options, curve, warm_up, w, length):
    _, factor = resolved(Epochs(100, 10), schedule=name, schedule_options=options, **warm_up, **length)
    expected = [t / w if t <= w else curve((t - w) / (40 - w)) for t in range(1, 41)]
    assert [factor(t) for t in range(1, 41)] == pytest.approx(expected, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("given", [{"lr_epochs": [3, 4]}, {"lr_steps": [20, 30]}])
def test_a_linear_warm_up_of_epochs_before_divisions(given):
    _, factor = resolved(Epochs(100, 10), **given, warmup_epoch=2, warmup="linear", num_epoch=4)
    expected = [t / 20 if t < 20 else 0.1 ** ((t > 20) + (t > 30)) for t in range(1, 41)]
    assert [factor(t) for t in range(1, 41)] == pytest.approx(expected, rel=1e-12)


def test_a_schedule_in_epochs_continues_with_another_batch_size():
    """After 25 of 40 updates, of 10 images, with 20 images: 8 updates are left, each with the rate of two."""
    _, before = resolved(Epochs(100, 10), schedule="polynomial", warmup_epoch=1, num_epoch=4)
    settings, after = resolved(Epochs(100, 20, 25, (2, 50)), schedule="polynomial", warmup_epoch=1, num_epoch=4)
    assert settings.max_update == 25 + 2 + 5
    # The half batch at the end of the epoch is left out, so two updates of this epoch are left.
    assert [after(25 + k) for k in (1, 2, 3, 7)] == pytest.approx([before(t) for t in (28, 30, 32, 40)], abs=1e-15)
    _, resumed = resolved(Epochs(100, 10, 25, (2, 50)), schedule="polynomial", warmup_epoch=1, num_epoch=4)
    assert [resumed(t) for t in range(26, 41)] == [before(t) for t in range(26, 41)]


@pytest.mark.parametrize("batch", [50, 200])
def test_a_warm_up_in_epochs_continues_with_another_batch_size(batch):
    """After 15 of 100 updates of 100 images; the warm-up has 2000 images, of which 500 are left."""
    plain = {"schedule": "polynomial", "warmup_epoch": 2, "max_update": 100}
    _, before = resolved(Epochs(1000, 100), **plain)
    _, after = resolved(Epochs(1000, batch, 15, (1, 500)), **plain)
    rates = [before(15), *(after(t) for t in range(16, 101))]
    assert rates[0] == 0.75 < rates[1] < max(rates) and rates[-1] == 0
    assert max(abs(later - rate) for rate, later in zip(rates, rates[1:])) < batch / 2000 + 0.1
    _, resumed = resolved(Epochs(1000, 100, 15, (1, 500)), **plain)
    assert [resumed(t) for t in range(1, 101)] == [before(t) for t in range(1, 101)]


@pytest.mark.parametrize("factor, message", [("1e300", "1e.300"), ("sys.exit(0)", "SystemExit: 0")])
def test_a_users_schedule_that_returns_no_factor_is_named(factor, message, tmp_path, monkeypatch):
    (tmp_path / "own_factor.py").write_text(f"import sys\n\ndef own(length):\n    return lambda moment: {factor}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_factor", raising=False)
    _, factor_of = resolved(Epochs(30, 10), schedule="own_factor:own", warmup_steps=0)
    with pytest.raises(ValueError, match=f"schedule is 'own_factor:own', which fails in update 3: .*{message}"):
        factor_of(3)


def test_a_users_own_schedule(tmp_path, monkeypatch):
    text = "def halved(length, every):\n    return lambda moment: 0.5 ** (moment.epoch // every)\n"
    (tmp_path / "own_schedule.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    own = {"schedule": "own_schedule:halved", "warmup_steps": 0, "num_epoch": 4}
    _, factor = resolved(Epochs(30, 10), schedule_options="every=2", **own)
    assert [factor(t) for t in range(1, 13)] == [1] * 6 + [0.5] * 6
    with pytest.raises(ValueError, match="'own_schedule:halved', but cannot be created with {}: .*every"):
        resolved(Epochs(30, 10), **own)
