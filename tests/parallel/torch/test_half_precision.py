"""Layers in float16 and bfloat16 against the same layers in float64, for all margins and objectives, at large scales.

test_torch_layer_oracle.py has strict bounds. Here, a logit is off by about s u / sqrt(E), as in selfcheck.py.
"""

import itertools
from dataclasses import replace

import pytest
import torch
from torch_layer import build

import interpreted
from partial_fc_torch import AdaFace, CombinedMarginLoss, CurricularFace, InterTopK, MagFace
from partial_fc_torch.layer.kernels.blocks import SMALLEST
from partial_fc_torch.layer.objectives import OBJECTIVES

BATCH, CLASSES, SIZE = 24, 150, 64
SCALES = 64.0, 256.0
MARGINS = {
    "arcface": lambda s: CombinedMarginLoss(s, 1.0, 0.5, 0.0),
    "cosface": lambda s: CombinedMarginLoss(s, 1.0, 0.0, 0.4),
    "filter": lambda s: CombinedMarginLoss(s, 1.0, 0.0, 0.4, 0.3),
    "adaface": AdaFace,
    "magface": MagFace,
    "curricularface": CurricularFace,
    "inter_topk": InterTopK,
}
CASES = [
    *itertools.product(MARGINS, ["softmax"], SCALES, [1]),
    *itertools.product(["cosface"], sorted(set(OBJECTIVES) - {"softmax"}), SCALES, [1, 3]),
]
ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8}


def results(margin, objective, scale, labels_per_item, dtype, **kernels):
    """The loss and both gradients of a step on features of which each resembles the centers of its labels."""
    layer = build(
        CLASSES,
        margins=MARGINS[margin](scale),
        embedding_size=SIZE,
        objective=objective,
        update_in_backward=False,
        **({"layer_dtype": "float32"} if dtype == torch.float64 else {"layer_dtype": dtype}),
        **kernels,
    )
    random = torch.Generator().manual_seed(0)
    centers = torch.randn(CLASSES, SIZE, generator=random).mul_(torch.logspace(-3, 3, CLASSES)[:, None])
    labels = torch.randint(CLASSES, (BATCH, labels_per_item), generator=random)
    unit = torch.nn.functional.normalize(centers)
    features = unit[labels].sum(dim=1) + 0.1 * torch.randn(BATCH, SIZE, generator=random)
    features[0] = -unit[labels[0, 0]]  # a hard item: its negatives have all the probability
    layer.copy_rows("weight", [(0, centers.numpy())])
    if dtype == torch.float64:
        layer.double()
    local = (10 * features).to(layer.weight.dtype).requires_grad_()
    loss = layer(local, labels)
    loss.backward()
    # The gradient by a center counts times its norm, as that by its unit row.
    by_centers = layer.optimizer.rows.grad.double() * centers.double().norm(dim=1, keepdim=True)
    return loss.detach().double(), local.grad.double(), by_centers


@pytest.fixture
def few_programs(monkeypatch):
    """Larger blocks, because each program of the interpreter takes milliseconds."""
    blocks = replace(SMALLEST, batch=32, classes=64, inner=32, numbers=2048, processors=1)
    monkeypatch.setattr(interpreted, "SMALLEST", blocks)


@pytest.mark.world_size(1)
@pytest.mark.usefixtures("few_programs")
@pytest.mark.parametrize("margin, objective, scale, labels_per_item", CASES)
def test_half_precision_agrees_with_float64(margin, objective, scale, labels_per_item):
    case = margin, objective, scale, labels_per_item
    loss, *gradients = results(*case, torch.float64)
    kernels = (
        ["torch"]
        if {margin, objective} & {"inter_topk", "bce", "sphereface2", "uniface"}
        else ["torch", "mm", "triton"]
    )
    for dtype, kernel in [("bfloat16", "torch"), *(("float16", each) for each in kernels)]:
        found, *halves = results(*case, dtype, layer_kernel=kernel)
        bound = 8 * ROUNDOFF[dtype] * (1 + scale / SIZE**0.5)
        assert abs(found - loss) <= bound * max(1, loss), (dtype, kernel)
        for half, exact in zip(halves, gradients):
            assert (half - exact).norm() <= bound * exact.norm(), (dtype, kernel)
