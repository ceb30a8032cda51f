"""Learning rates from settings and the number of ranks."""

import pytest

import default
from partial_fc_mxnet.build import learning_rates


@pytest.mark.parametrize(
    "dataset, ranks, changes, expected",
    [
        ("glint360k_8GPU", 8, {}, (0.1, 0.1)),  # as in the original
        ("glint360k_16GPU", 16, {}, (0.1, 0.1)),
        ("ms1mv3", 4, {}, (0.05, 0.05)),
        ("demo", 1, {}, (0.05, 0.05)),
        ("demo", 2, {"batch_size": 128}, (0.2, 0.2)),
        ("emore", 2, {"lr": 0.2}, (0.05, 0.05)),
        ("emore", 2, {"backbone_lr": 0.3}, (0.3, 0.025)),
        ("emore", 2, {"memory_bank_lr": 0.3}, (0.025, 0.3)),
    ],
)
def test_rates_scale_with_the_global_batch_unless_set(dataset, ranks, changes, expected):
    settings = default.generate_config(None, dataset, None, changes)
    assert learning_rates(settings, ranks) == pytest.approx(expected)
