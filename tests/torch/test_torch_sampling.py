"""The sample of a step in PyTorch's operators, as a GPU computes it."""

import numpy as np
import pytest
import torch

from partial_fc.layer.sampling import WeightIndexSampler, insert_positives


@pytest.mark.parametrize("num_sample", [20, 64, 99])
def test_pytorch_samples_the_same_classes_as_numpy(num_sample):
    samplers = [WeightIndexSampler(num_sample, 100, rank=1) for _ in range(2)]
    for number in range(50):
        labels = np.random.default_rng(number).integers(0, 300, 20)
        drawn, order = (torch.from_numpy(places) for places in samplers[0].draw(len(labels)))
        index = insert_positives(drawn, order, torch.from_numpy(labels) - 100, 100, torch)
        assert index.sort().values.tolist() == samplers[1](labels)[0].tolist()
