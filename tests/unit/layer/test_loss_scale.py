"""The loss scale is halved after an overflow and doubled after many finite updates; many overflows are an error."""

import pytest

from partial_fc.layer.loss_scale import GIVE_UP_AFTER, GROW_AFTER, LARGEST, LossScale


def test_overflow_halves_the_scale_and_resets_good_steps():
    scale = LossScale(64)
    assert scale.factor == 2.0**16 / 64
    for _ in range(GROW_AFTER - 1):
        scale.passed()
    scale.overflowed(GROW_AFTER)
    assert (scale.scale, scale.good_steps, scale.skipped) == (2.0**15, 0, 1)
    scale.passed()
    assert (scale.scale, scale.good_steps, scale.skipped) == (2.0**15, 1, 0)


def test_scale_stays_within_its_bounds():
    scale = LossScale(1)
    for _ in range(20):
        scale.good_steps = GROW_AFTER - 1
        scale.passed()
    assert scale.scale == LARGEST
    for _ in range(100):  # never two in a row
        scale.overflowed(1)
        scale.passed()
    assert scale.scale == 1.0


def test_many_overflows_in_a_row_raise():
    scale = LossScale(1)
    for update in range(1, GIVE_UP_AFTER):
        scale.overflowed(update)
    assert scale.scale == 1.0, "training must not stop before every scale down to 1 has been tried"
    with pytest.raises(FloatingPointError, match="20 updates in a row .* at update 20, .* scale 1: .*fp16"):
        scale.overflowed(GIVE_UP_AFTER)


def test_restored_state_continues_like_the_original():
    first, second = LossScale(8), LossScale(8)
    first.overflowed(1)
    for _ in range(GROW_AFTER - 1):
        first.passed()
    second.restore(first.state())
    assert vars(first) == vars(second) and second.scale == 2.0**15
    second.passed()
    assert (second.scale, second.good_steps) == (2.0**16, 0)
