"""Negatives with weights on several ranks."""

import numpy as np
import torch
from torch_layer import LOCAL, all_ranks, build, random_batch

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
        scale = layer.margin.scale
        expected = []
        for row, label in enumerate(labels):
            column = int(np.flatnonzero(index == label)[0])
            target = scale * (cosines[row, column] - 0.4)
            positives = np.isin(index, labels)
            logits = scale * cosines[row] + np.where(positives, 0, weights)
            logits[column] = target
            expected.append(np.log(np.exp(logits).sum()) - target)
        np.testing.assert_allclose(loss.item(), np.mean(expected), rtol=1e-5)
