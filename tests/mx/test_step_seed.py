"""Random numbers of operators that depend on seed, rank and update only."""

import horovod.mxnet as hvd
import mxnet as mx
import numpy as np
import pytest

from partial_fc.training.loop import seed_step
from partial_fc_mxnet.data_parallel import DataParallelModule
from partial_fc_mxnet.symbol import get_symbol


@pytest.mark.parametrize("output, expected", [("FC", False), ("E", True)])
def test_only_networks_with_dropout_need_a_seed(output, expected):
    hvd.init()
    assert DataParallelModule(get_symbol("small", 8, net_output=output)).draws_random_numbers is expected


def dropout_mask():
    with mx.autograd.record():
        return mx.nd.Dropout(mx.nd.ones((64, 64)), p=0.4).asnumpy()


def test_the_numbers_depend_on_seed_rank_and_update_only():
    seed_step(mx.random.seed, 5, 1, 10)
    first = dropout_mask()
    assert not np.array_equal(dropout_mask(), first)
    seed_step(mx.random.seed, 5, 1, 10)
    np.testing.assert_array_equal(dropout_mask(), first)
    for other in ((5, 0, 10), (6, 1, 10), (5, 1, 11)):
        seed_step(mx.random.seed, *other)
        assert not np.array_equal(dropout_mask(), first)
