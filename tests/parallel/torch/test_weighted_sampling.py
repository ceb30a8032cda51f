"""Negatives with weights on several ranks."""

import numpy as np
import pytest
import torch
from torch_layer import LOCAL, RANK, all_ranks, build, random_batch

import default
from partial_fc.checkpoint.model_format import TORCH
from partial_fc.distributed.errors import JobError
from partial_fc.training.schedule import Epochs
from partial_fc.training.tasks import build_task
from partial_fc_torch.build import TorchFramework

CLASSES, WEIGHTS = 31, np.arange(1.0, 32.0) ** 2


def test_the_loss_counts_each_negative_by_its_probability():
    layer = build(CLASSES, 0.3, (1.0, 0.0, 0.4), sampling_weights=WEIGHTS, sampling_correction=True)
    for seed in range(3):
        features, labels = random_batch(CLASSES, seed)
        drawn, draw = [], layer._draw
        layer._draw = lambda label, drawn=drawn, draw=draw: drawn.append(draw(label)) or drawn[-1]
        centers = all_ranks(layer.rows("weight")).astype(float)
        _, loss = layer.step(torch.from_numpy(features[LOCAL]), torch.from_numpy(labels[LOCAL]))
        layer._draw = draw
        index = all_ranks(drawn[-1].sampled.rows + layer.class_start)
        weights = all_ranks(layer.sampler.log_weights.astype(float))[index]
        unit, centers = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (features, centers))
        cosines = unit @ centers[index].T
        scale, is_target = layer.margin.scale, index == labels[:, None]
        target = scale * (cosines[is_target] - 0.4)
        logits = scale * cosines + np.where(np.isin(index, labels), 0, weights)
        logits[is_target] = target
        np.testing.assert_allclose(loss.item(), np.mean(np.log(np.exp(logits).sum(axis=1)) - target), rtol=1e-5)


@pytest.mark.world_size(3)
def test_ranks_that_read_different_weights_are_refused(tmp_path):
    np.save(tmp_path / f"{RANK}.npy", 1 + RANK // 2 * np.eye(10)[0])
    changes = {"debug": True, "num_classes": 10, "sample_ratio": 0.5, "sampling": f"{tmp_path}/{RANK}.npy"}
    settings = default.generate_config(changes=changes, trainer="torch")
    arguments = build_task(settings), lambda num_update: 0.1, Epochs(20, 10), None, str(tmp_path), TORCH
    with pytest.raises(JobError, match="weights of sampling differs between ranks: .* on rank 2, but .* on rank 0"):
        TorchFramework().build_engine(settings, *arguments)
