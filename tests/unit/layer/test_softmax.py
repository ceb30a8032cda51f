import numpy as np
import pytest

from partial_fc.layer.softmax import MissingPositiveError, combine_statistics


def statistics(logits, labels, splits):
    """Statistics (R, 3, G) float32 of logits (G, C) whose columns are split over R ranks."""
    parts, start = [], 0
    for part in np.split(logits, splits, axis=1):
        stop = start + part.shape[1]
        target = np.array([row[y - start] if start <= y < stop else -np.inf for row, y in zip(part, labels)])
        if part.shape[1]:
            top = part.max(axis=1)
            parts.append([top, np.exp(part - top[:, None]).sum(axis=1), target])
        else:
            parts.append([np.full(len(labels), -np.inf), np.zeros(len(labels)), target])
        start = stop
    return np.array(parts, np.float32)


@pytest.mark.parametrize("splits", [[], [3], [1, 4], [5, 5]])
def test_equals_the_undivided_softmax(splits):
    rng = np.random.default_rng(0)
    logits, labels = rng.uniform(-64, 64, (9, 5)), rng.integers(0, 5, 9)
    result = combine_statistics(statistics(logits, labels, splits), labels)
    expected = np.log(np.exp(logits).sum(axis=1))
    np.testing.assert_allclose(result.log_sum_exp, expected, rtol=1e-6)
    np.testing.assert_allclose(result.loss, np.mean(expected - logits[np.arange(9), labels]), rtol=1e-5, atol=1e-5)


def test_loss_is_exact_if_the_probability_underflows_float32():
    # exp(-128) is 0 in float32, and log(0 + 1e-30) would be 69.0776.
    logits, labels = np.array([[-64.0, 64.0]]), np.array([0])
    assert combine_statistics(statistics(logits, labels, [1]), labels).loss == pytest.approx(128.0)


def test_missing_positives_raise_with_count_and_label():
    incomplete = statistics(np.zeros((3, 4)), np.array([1, 2, 3]), [2])
    incomplete[:, 2, 1:] = -np.inf
    with pytest.raises(MissingPositiveError, match="2 of 3 labels .* label 2 at row 1"):
        combine_statistics(incomplete, np.array([1, 2, 3]))
    result = combine_statistics(incomplete, np.array([1, 2, 3]), requires_positives=False)
    np.testing.assert_allclose(result.log_sum_exp, [np.log(4), np.inf, np.inf])
    assert result.loss == pytest.approx(np.log(4) / 3)
