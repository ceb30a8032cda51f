"""The PyTorch layer equals the MXNet layer step by step, with the same sampled classes, at any number of ranks."""

import numpy as np
import pytest
import torch
from torch_layer import RANK, SIZE, all_ranks, build

from partial_fc.layer.sampling import WeightIndexSampler
from partial_fc.layer.sharding import num_sampled
from recorded_steps import CASES, CLASSES, LR, SCALE, TOLERANCE, E, G, batches, recorded

LOCAL = slice(RANK * (G // SIZE), (RANK + 1) * (G // SIZE))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("tiling", [{}, {"tile_classes": 7}, {"tile_classes": 64, "logits_cache_mb": 0}])
def test_equals_the_mxnet_layer_over_20_steps(case, tiling):
    margins, _ = CASES[case]
    layer = build(CLASSES, 1.0, margins, SCALE, E, **tiling)
    expected, indices = recorded(case), []

    def sample(labels):
        own = indices[-1] - layer.class_start
        return torch.from_numpy(own[(own >= 0) & (own < layer.num_local)])

    layer.sample, layer.learning_rate = sample, LR
    for step, (features, labels) in enumerate(batches()):
        indices.append(expected["indices"][step])
        gradient, loss = layer.step(torch.from_numpy(features[LOCAL]), torch.from_numpy(labels[LOCAL]))
        np.testing.assert_allclose(loss, expected["losses"][step], **TOLERANCE)
        # step returns R times the gradient of the mean loss.
        np.testing.assert_allclose(all_ranks(gradient) * G / SIZE, expected["gradients"][step], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(all_ranks(layer.weight), expected["centers"], **TOLERANCE)
    # PyTorch's momentum sums gradients, MXNet's sums steps.
    np.testing.assert_allclose(-LR * all_ranks(layer.weight_mom), expected["momentum"], **TOLERANCE)


@pytest.mark.parametrize("case", CASES)
def test_the_sampler_draws_the_recorded_classes(case):
    """The same seed draws the same classes in both environments, whatever their versions of NumPy."""
    sampler = WeightIndexSampler(num_sampled(CLASSES, CASES[case][1]), CLASSES, 0)
    for (_, labels), expected in zip(batches(), recorded(case)["indices"]):
        np.testing.assert_array_equal(sampler(labels)[0], expected)
