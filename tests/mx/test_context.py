import mxnet as mx
import pytest

from partial_fc_mxnet.ops.memory import rank_context


def test_context_is_gpu_of_local_rank_or_cpu(monkeypatch):
    monkeypatch.setattr(mx.context, "num_gpus", lambda: 0)
    assert rank_context(3) == mx.cpu()
    monkeypatch.setattr(mx.context, "num_gpus", lambda: 2)
    assert [rank_context(rank) for rank in range(2)] == [mx.gpu(0), mx.gpu(1)]
    with pytest.raises(ValueError, match="local rank 2 has no GPU, MXNet finds 2 on this host: start at most 2 ranks"):
        rank_context(2)
