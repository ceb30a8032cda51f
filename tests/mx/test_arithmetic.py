"""DeviceArithmetic, for GPUs, gives the same results as HostArithmetic; here both run on the CPU."""

import mxnet as mx
import numpy as np
import pytest

from partial_fc_mxnet import MarginLoss, MemoryBank, MemoryBankSGDOptimizer
from partial_fc_mxnet.layer import tiled_softmax
from partial_fc_mxnet.ops.arithmetic import DeviceArithmetic, HostArithmetic, product

HOST, DEVICE = HostArithmetic(), DeviceArithmetic(mx.cpu())
G, T, E = 5, 7, 4


def rows(count, width, seed=0):
    return mx.nd.array(np.random.default_rng(seed).standard_normal((count, width)))


def as_numpy(result):
    return result.asnumpy() if isinstance(result, mx.nd.NDArray) else np.asarray(result)


# Name -> call(arithmetic, array), which returns all results and all changed arrays.
CALLS = {
    "gather": lambda a, x: [a.gather(x, np.array([6, 0, 3]), mx.nd.zeros((3, E)))],
    "scatter": lambda a, x: a.scatter(x, np.array([6, 0, 3]), rows(3, E, 1)) or [x],
    "scatter_entries": lambda a, x: (
        a.scatter_entries(x, np.array([1, 0]), np.array([3, 2]), np.array([8.0, 9.0])) or [x]
    ),
    "scatter_no_entries": lambda a, x: a.scatter_entries(x, *[np.empty(0, np.int64)] * 2, np.empty(0)) or [x],
    "inverse_norms": lambda a, x: [a.inverse_norms(x)],
    "dot_rows": lambda a, x: [a.dot_rows(x, rows(T, E, 1))],
    "remove_component": lambda a, x: a.remove_component(x, rows(T, E, 1), a.vector(np.arange(T))) or [x],
    "scale_columns": lambda a, x: a.scale_columns(x, a.vector(np.arange(E))) or [x],
    "scale_rows": lambda a, x: a.scale_rows(x, a.vector(np.arange(T))) or [x],
    "exponentiate": lambda a, x: [*a.exponentiate(x), x],
    "exp_minus": lambda a, x: a.exp_minus(x, np.arange(T)) or [x],
    "add_to_columns": lambda a, x: a.add_to_columns(x, np.arange(E) / 7) or [x],
    "replace_above": lambda a, x: a.replace_above(x, 0.5, -9.0) or [x],
    "to_host": lambda a, x: [a.to_host([a.vector(np.arange(T)), a.inverse_norms(x)])],
}


@pytest.mark.parametrize("name", CALLS)
def test_host_and_device_agree(name):
    before = rows(T, E)
    host, device = (CALLS[name](arithmetic, before.copy()) for arithmetic in (HOST, DEVICE))
    for expected, actual in zip(host, device):
        np.testing.assert_allclose(as_numpy(actual), as_numpy(expected), rtol=1e-5, atol=1e-6)


def test_backward_of_product_adds_to_the_first_gradient_and_overwrites_the_second():
    data, weight, head = rows(G, E), rows(T, E, 1), rows(G, T, 2)
    gradients = mx.nd.ones((G, E)), mx.nd.ones((T, E))
    logits = product(data, weight, gradients)
    logits.backward(head)
    np.testing.assert_allclose(logits.asnumpy(), product(data, weight).asnumpy(), rtol=1e-6)
    np.testing.assert_allclose(gradients[0].asnumpy(), 1 + head.asnumpy() @ weight.asnumpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradients[1].asnumpy(), head.asnumpy().T @ data.asnumpy(), rtol=1e-5, atol=1e-6)


def test_gather_waits_until_no_operator_reads_the_buffer_it_overwrites():
    source, buffer, slow = mx.nd.ones((500, 500)), mx.nd.zeros((500, 500)), mx.nd.ones((1500, 1500))
    mx.nd.waitall()
    pending = mx.nd.dot(mx.nd.dot(slow, slow), slow)  # occupies MXNet's worker, so the copy has to wait
    copy = buffer.copy()
    HOST.gather(source, np.arange(500), buffer)
    assert not copy.asnumpy().any(), "the copy must have the content before gather"
    pending.wait_to_read()


class OperatorSGD(MemoryBankSGDOptimizer):
    """An optimizer as on a GPU or by a user: its ``update`` does not take inverse_norm and state_rows."""

    def update(self, weight, grad, state, learning_rate):
        numbers = dict(momentum=self.momentum, wd=self.wd, rescale_grad=self.rescale_grad)
        mx.nd.sgd_mom_update(weight, grad, state, out=weight, lr=learning_rate, **numbers)


@pytest.mark.parametrize("sampled", [None, np.array([0, 2, 3, 7, 8, 11])])
@pytest.mark.parametrize("logits_cache_bytes", [0, 1 << 20])
def test_host_and_device_agree_on_a_step(sampled, logits_cache_bytes, tmp_path, monkeypatch):
    results = []
    for arithmetic, optimizer in ((HOST, MemoryBankSGDOptimizer), (DEVICE, OperatorSGD)):
        monkeypatch.setattr(tiled_softmax, "arithmetic_on", lambda context, chosen=arithmetic: chosen)
        bank = MemoryBank(12, 12, 0, 0, E, str(tmp_path), class_start=0)
        softmax = tiled_softmax.TiledMarginSoftmax(MarginLoss(loss_s=8), bank, mx.cpu(), 5, logits_cache_bytes)
        index = np.arange(12) if sampled is None else sampled
        column = np.array([0, 5, -1, 2, 2])
        statistics = softmax.forward(rows(G, E), column, index)
        log_sum_exp = statistics[0] + np.log(statistics[1])
        d_features = softmax.backward(log_sum_exp, optimizer(None, 1 / G), 0.1)
        results.append([statistics, d_features.asnumpy(), bank.weight.asnumpy(), bank.weight_mom.asnumpy()])
    for expected, actual in zip(*results):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-6)
