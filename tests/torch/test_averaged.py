"""Averages of a backbone's weights."""

import numpy as np
import torch
from torch import nn

from partial_fc.training.schedule import Epochs
from partial_fc_torch.averaged import AveragedBackbone, EpochMean


def test_the_average_follows_its_formula():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    averaged = AveragedBackbone(model, decay=0.5)
    expected = {name: value.double().numpy() for name, value in model.state_dict().items()}
    for update in range(1, 13):  # (1 + t) / (10 + t) reaches 0.5 at t = 8
        for value in model.state_dict().values():
            value.add_(1 if value.dtype == torch.int64 else torch.randn_like(value))
        averaged.update(update)
        decay = min(0.5, (1 + update) / (10 + update))
        for name, value in model.state_dict().items():
            counter = name.endswith("num_batches_tracked")
            expected[name] = value.numpy() if counter else decay * expected[name] + (1 - decay) * value.double().numpy()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    with averaged.in_backbone():
        for name, value in model.state_dict().items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-6)
            assert name.endswith("num_batches_tracked") or not torch.equal(value, weights[name])
    averaged.reset()
    with averaged.in_backbone():
        for name, value in model.state_dict().items():
            assert torch.equal(weights[name], value)
            value.zero_()
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


def test_the_mean_covers_the_ends_of_the_last_epochs():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    epochs = Epochs(num_images=35, global_batch=10)  # of 3 updates
    for max_update, count, expected in ((12, 3, [6, 9, 12]), (11, 2, [9, 11]), (6, 9, [3, 6]), (12, 1, [12])):
        mean, states = EpochMean(model, *epochs.last_ends(count, max_update)), []
        for update in range(1, max_update + 1):
            for value in model.state_dict().values():
                value.add_(1 if value.dtype == torch.int64 else torch.randn_like(value))
            mean.update(update)
            states.append({name: value.double().numpy() for name, value in model.state_dict().items()})
        assert mean.count == len(expected)
        with mean.in_backbone():
            for name, value in model.state_dict().items():
                of_ends = [states[update - 1][name] for update in expected]
                wanted = of_ends[-1] if name.endswith("num_batches_tracked") else np.mean(of_ends, axis=0)
                np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6)
