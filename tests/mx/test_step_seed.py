"""Random numbers of operators that depend on seed, rank and update only."""

from types import SimpleNamespace

import mxnet as mx
import numpy as np
import pytest
from partial_fc_mxnet.step_seed import StepSeed, draws_random_numbers

from partial_fc_mxnet.symbol import get_symbol


@pytest.mark.parametrize("output, expected", [("FC", False), ("E", True)])
def test_only_networks_with_dropout_need_a_seed(output, expected):
    assert draws_random_numbers(get_symbol("small", 8, net_output=output)) is expected


def dropout_mask():
    with mx.autograd.record():
        return mx.nd.Dropout(mx.nd.ones((64, 64)), p=0.4).asnumpy()


def test_the_numbers_depend_on_seed_rank_and_update_only():
    seed = StepSeed(5, rank=1)
    seed.after(10)
    first = dropout_mask()
    assert not np.array_equal(dropout_mask(), first)
    StepSeed(5, rank=1)(SimpleNamespace(num_update=10))
    np.testing.assert_array_equal(dropout_mask(), first)
    for other, update in ((StepSeed(5, rank=0), 10), (StepSeed(6, rank=1), 10), (seed, 11)):
        other.after(update)
        assert not np.array_equal(dropout_mask(), first)
