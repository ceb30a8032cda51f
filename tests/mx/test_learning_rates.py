"""Learning rates from the settings and the number of ranks, and MXNet's schedulers."""

import pytest
from mxnet.lr_scheduler import MultiFactorScheduler

import default
from partial_fc_mxnet.build import learning_rates
from partial_fc_mxnet.memory_scheduler import get_scheduler


@pytest.mark.parametrize(
    "dataset, ranks, changes, expected",
    [
        ("glint360k_8GPU", 8, {}, (0.1, 0.1)),  # as in the original
        ("glint360k_16GPU", 16, {}, (0.1, 0.1)),
        ("demo", 2, {"batch_size": 128}, (0.2, 0.2)),
        ("emore", 2, {"backbone_lr": 0.3}, (0.3, 0.025)),
        ("emore", 2, {"memory_bank_lr": 0.3}, (0.025, 0.3)),
    ],
)
def test_rates_scale_with_the_global_batch_unless_set(dataset, ranks, changes, expected):
    settings = default.generate_config(None, dataset, None, changes)
    assert learning_rates(settings, ranks) == pytest.approx(expected)


@pytest.mark.parametrize("lr_steps, warmup_steps", [([], 0), ([3, 5], 0), ([6, 8, 9], 5), ([2, 4], 7)])
def test_rates_and_log_lines_are_those_of_mxnets_scheduler(lr_steps, warmup_steps, caplog):
    caplog.set_level("INFO")
    steps = lr_steps or [2**62]  # MXNet refuses an empty list
    for scheduler, lr in zip(get_scheduler(lr_steps, 0.1, 0.3, warmup_steps), (0.1, 0.3)):
        expected = MultiFactorScheduler(step=steps, factor=0.1, base_lr=lr, warmup_steps=warmup_steps)
        results = []
        for compared in (scheduler, expected):
            rates = [[compared(update) for _ in range(2)][0] for update in range(1, 15)]  # calls of two parameters
            # MXNet logs a line for each step that falls into the warm-up; the last one has the rate.
            results.append((rates, caplog.messages[-1:] if warmup_steps > max(steps) else caplog.messages))
            caplog.clear()
        assert results[0][0] == pytest.approx(results[1][0], rel=1e-15)
        assert results[0][1] == results[1][1]
