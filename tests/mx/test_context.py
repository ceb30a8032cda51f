import mxnet as mx
import pytest

from partial_fc_mxnet.ops.device import choose_context


def test_context_is_gpu_of_local_rank_or_cpu():
    assert choose_context(3, gpus=0) == mx.cpu()
    assert [choose_context(rank, gpus=2) for rank in range(2)] == [mx.gpu(0), mx.gpu(1)]


def test_more_ranks_than_gpus_raise():
    with pytest.raises(ValueError, match="local rank 2 has no GPU, MXNet finds 2 on this host: start at most 2 ranks"):
        choose_context(2, gpus=2)
