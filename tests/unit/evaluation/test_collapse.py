"""Problems found in verifications of successful and of failed trainings."""

import numpy as np
import pytest

from partial_fc.evaluation.collapse import find_problems, suggest_changes
from partial_fc.evaluation.verification import VerificationPoint, effective_dimensions
from partial_fc.settings.declarations import SETTINGS
from partial_fc.utils.distances import squared_distances


def point(accuracy, dimensions, agreement):
    return VerificationPoint(500, accuracy, 0.01, 1.5, 0.5, 1e-3, 10.0, dimensions, agreement, 4.0)


@pytest.mark.parametrize(
    "measured, problems",
    [
        # Measured at update 500 of the demo (docs/collapse.md).
        (point(0.8045, 3.4, 0.955), []),
        (point(0.9030, 12.5, 0.959), []),
        # At the bounds and below.
        (point(0.8, 3.0, 0.7), []),
        (point(0.8, 2.9999, 0.7), ["span 3.0 dimensions"]),
        (point(0.8, 3.0, 0.6999), ["mean cosine 0.70"]),
        (point(0.5590, 1.1, 0.749), ["span 1.1 dimensions"]),
        (point(0.7365, 2.0, 0.719), ["span 2.0 dimensions"]),
        (point(0.7020, 1.0, 0.645), ["span 1.0 dimensions"]),
        # Wrong running statistics, then NaN.
        (point(0.93, 12.0, 0.31), ["evaluation and in training mode (mean cosine 0.31"]),
        (point(0.93, float("nan"), 0.9), ["span nan dimensions"]),
        (point(0.93, 12.0, float("nan")), ["mean cosine nan"]),
    ],
)
def test_find_problems(measured, problems):
    messages = find_problems(measured)
    assert len(messages) == len(problems)
    for text, expected in zip(messages, problems):
        assert expected in text


CENTERS = {"layer_options": "lr=0.2"}


@pytest.mark.parametrize(
    "changes, expected, absent",
    [
        ({}, ["start again with warmup_steps=400 lr=0.025 max_grad_norm=5"], "bn_mom"),
        ({"optimizer_options": "lr=0.4", **CENTERS}, ["optimizer_options=lr=0.1 layer_options=lr=0.05"], " lr="),
        (CENTERS, ["lr=0.025 layer_options=lr=0.05"], "optimizer_options"),
        ({"max_grad_norm": 2.0, "warmup_steps": 2000}, ["warmup_steps=8000"], "max_grad_norm"),
        ({"warmup_steps": 400, "max_update": 2000}, ["warmup_steps=1000"], "layer_options"),
        ({"warmup_steps": 5, "max_update": 300}, ["warmup_steps=150"], "layer_options"),
        ({"max_update": 60}, ["start again with more updates, such as max_update=300, or with more classes"], "lr"),
        ({"max_update": 299, "num_epoch": 20}, ["num_epoch=40, or"], "lr"),
        ({"max_update": 0}, ["max_update=300"], "lr"),
        ({"warmup_epoch": 2}, ["warmup_epoch=4 lr=0.025"], "warmup_steps"),
        ({"schedule": "factors"}, ["start again with lr=0.025"], "warmup"),
        ({"network_options": "bn_mom=0.99"}, ["network_options=bn_mom=0.9"], "layer_options"),
    ],
)
def test_suggestions_depend_on_the_settings(changes, expected, absent):
    text = suggest_changes({**SETTINGS.defaults(), **changes})
    assert all(change in text for change in expected) and absent not in text


def test_effective_dimensions():
    rng = np.random.default_rng(0)
    issame = np.arange(4000) % 2 == 0
    for embedding_size in (2, 16, 128):
        embeddings = rng.standard_normal((8000, embedding_size))
        embeddings[1::4] = embeddings[0::4]  # pairs of the same person do not count
        dimensions = effective_dimensions(squared_distances(embeddings[::2], embeddings[1::2]), issame)
        assert dimensions == pytest.approx(embedding_size, rel=0.1)
    line = np.outer(np.where(rng.random(8000) < 0.5, 1, -1), np.ones(16))
    assert effective_dimensions(squared_distances(line[::2], line[1::2]), issame) == pytest.approx(1)
