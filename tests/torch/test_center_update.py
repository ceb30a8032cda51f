"""The update of the centers: PyTorch's operators, which GPUs use, and NumPy's on the CPU do the same."""

import numpy as np
import pytest
import torch

from partial_fc.layer.sgd import SGDParams
from partial_fc_torch.layer.optimizers import sgd
from partial_fc_torch.layer.rows import Centers, TileGradient, inverse_norms


@pytest.mark.parametrize("convention", ["gradients", "steps"])
@pytest.mark.parametrize("rows", [slice(20, 200), torch.arange(3, 290, 2)])
def test_both_updates_are_the_same(rows, convention):
    params, results = SGDParams(0.2, momentum=0.9, wd=0.05, rescale_grad=0.25, momentum_convention=convention), []
    for update in (sgd._update_on_cpu, sgd._update_by_operators):
        rng = np.random.default_rng(0)
        weight, momentum, gradient = (torch.from_numpy(rng.standard_normal((300, 8))).float() for _ in range(3))
        tile = TileGradient(rows, weight[rows], inverse_norms(weight[rows]), gradient[rows].clone(), scale=0.25)
        update(Centers(weight, {"weight_mom": momentum}), tile, params)
        results.append((weight, momentum))
    for host, device in zip(*results):
        # A few float32 roundings of numbers of order 1, 6e-8 each.
        np.testing.assert_allclose(host, device, rtol=0, atol=1e-6)
