"""Ten-fold verification, and distances of raw pixels, against slow implementations of their definitions."""

import cv2
import numpy as np
import pytest

from partial_fc.data.pairs_bin import write_pairs
from partial_fc.evaluation import validation_set
from partial_fc.evaluation.validation_set import PairsOfRank, raw_pixel_distances
from partial_fc.evaluation.verification import describe_tar, verify, verify_distances
from partial_fc.training.report.charts import roc_curve


def random_pairs(pairs, dimension, noise, seed):
    """Returns embeddings and labels; same pairs differ by ``noise``, different pairs are independent."""
    rng = np.random.default_rng(seed)
    issame = rng.random(pairs) < 0.5
    left, other = rng.normal(size=(2, pairs, dimension))
    right = np.where(issame[:, None], left + noise * rng.normal(size=left.shape), other)
    lengths = rng.uniform(0.1, 9, size=(2 * pairs, 1))
    return (np.stack([left, right], axis=1).reshape(2 * pairs, dimension) * lengths).astype(np.float32), issame


def slow_verify(distances, issame, folds):
    """Accuracies and thresholds of the folds by the definition, threshold by threshold."""
    thresholds = np.arange(0, 4, 0.01)
    right = np.stack([(distances < threshold) == issame for threshold in thresholds])
    accuracies, chosen = [], []
    for test in np.array_split(np.arange(len(issame)), folds):
        others = np.delete(right, test, axis=1).sum(axis=1).tolist()
        best = others.index(max(others))  # the first of equal ones
        accuracies.append(right[best, test].mean())
        chosen.append(thresholds[best])
    return np.array(accuracies), np.array(chosen)


def slow_interpolated_tar(distances, issame, folds, far):
    """The TAR by its definition: a pass over all pairs for each of the 4,000 thresholds."""
    grid = np.arange(0, 4, 0.001)
    shares = []
    for test in np.array_split(np.arange(len(issame)), folds):
        train = np.setdiff1d(np.arange(len(issame)), test)
        others = distances[train][~issame[train]]
        rates = [np.sum(others < threshold) / len(others) for threshold in grid]
        threshold = 0.0
        if max(rates) >= far:
            above = next(i for i, rate in enumerate(rates) if rate >= far)
            share = (far - rates[above - 1]) / (rates[above] - rates[above - 1])
            threshold = grid[above - 1] + share * (grid[above] - grid[above - 1])
        same = test[issame[test]]
        if len(same):
            shares.append(np.sum(distances[same] < threshold) / len(same))
    return np.mean(shares)


@pytest.mark.parametrize("far", [1e-3, 1.0])
@pytest.mark.parametrize("pairs, folds, noise", [(200, 10, 0.8), (123, 10, 1.5), (57, 4, 0.1), (20, 20, 1.0)])
def test_figures_match_the_definition(pairs, folds, noise, far):
    embeddings, issame = random_pairs(pairs, 8, noise, seed=pairs)
    result = verify(embeddings, issame, folds, far)
    unit = embeddings.astype(np.float64) / np.linalg.norm(embeddings.astype(np.float64), axis=1, keepdims=True)
    distances = np.sum((unit[0::2] - unit[1::2]) ** 2, axis=1)
    accuracies, thresholds = slow_verify(distances, issame, folds)
    assert result.accuracy == pytest.approx(accuracies.mean(), abs=1e-12)
    assert result.std == pytest.approx(accuracies.std(), abs=1e-12)
    assert result.threshold == pytest.approx(thresholds.mean(), abs=1e-12)
    assert result.tar_interpolated == pytest.approx(slow_interpolated_tar(distances, issame, folds, far), abs=1e-9)


SAME, RISING = np.tile([True] * 5 + [False] * 5, 300), np.arange(3000) / 1000


@pytest.mark.parametrize(
    "distance, far, tar, measured",
    [
        (np.zeros(3000), 1e-3, 0, 0),  # a collapsed model: no threshold separates ties
        (np.ones(3000), 1e-3, 0, 0),
        (np.where(SAME | (np.arange(3000) % 2 == 0), 0.0, 2.0), 1e-3, 0, 0),  # every second impostor as near
        (np.where(SAME, 1e-6, 9e-4), 1e-3, 1, 0),  # below a grid of 0.001
        (np.where(SAME, 0.0, 4.0), 1e-3, 1, 0),
        (np.where(SAME, 4.0, 0.0), 1e-3, 0, 0),
        (np.where(SAME, 0.0065, RISING), 3 / 1500, 1, 3 / 1500),  # impostors at 0.005, 0.006, ...
        (np.where(SAME, 0.008, RISING), 3 / 1500, 0, 3 / 1500),  # a tie with the fourth
    ],
)
def test_tar_is_counted_at_a_far_that_is_not_exceeded(distance, far, tar, measured):
    found = verify_distances(distance, SAME, far=far)
    assert (found.tar_at_far, found.measured_far) == (tar, measured)
    roc_far, roc_tar = roc_curve(distance, SAME)  # the chart's curve has the same points
    assert roc_tar[np.searchsorted(roc_far, far, side="right") - 1] == tar


@pytest.mark.parametrize("seed", range(5))
def test_tar_matches_trying_every_threshold(seed):
    rng = np.random.default_rng(seed)
    issame = rng.random(400) < 0.4
    distance = np.clip(rng.normal(np.where(issame, 0.9, 1.8), 0.5), 0, 4).round(2)  # with ties
    for far in (0.001, 0.01, 0.1, 0.5):
        points = [(np.mean(distance[issame] < t), np.mean(distance[~issame] < t)) for t in [*np.unique(distance), 5.0]]
        found = verify_distances(distance, issame, far=far)
        assert found.tar_at_far == max(tar for tar, measured in points if measured <= far)
        assert (found.tar_at_far, found.measured_far) in points and found.measured_far <= far


def test_the_log_has_insightfaces_tar_if_it_differs():
    text = describe_tar(verify_distances(np.where(SAME, 1e-6, 9e-4), SAME), 1500)
    assert text == "TAR@FAR=0.001: 1.00000 (measured FAR 0.00000, insightface's TAR 0.00000)"
    assert "insightface's TAR 0.00000" in describe_tar(verify_distances(np.where(SAME, 0.0, 4.0), SAME), 1500)
    text = describe_tar(verify_distances(np.where(SAME, 0.0, 3.0), SAME), 999)
    assert "insightface" not in text and "too few impostor pairs for FAR 0.001: 999" in text


def test_invalid_input_is_refused():
    embeddings, issame = random_pairs(30, 4, 0.5, seed=1)
    damaged = embeddings.copy()
    damaged[13, 2] = np.nan
    for arguments, message in [
        ((embeddings[:-1], issame), "30 pairs need 60 embeddings"),
        ((embeddings, issame, 31), "31 folds"),
        ((embeddings, np.ones(30, bool)), "different"),
        ((damaged, issame), "the first is pair 6"),
    ]:
        with pytest.raises(ValueError, match=message):
            verify(*arguments)


def encoded(images):
    return [cv2.imencode(".png", image[:, :, ::-1])[1].tobytes() for image in images]


@pytest.mark.parametrize("chunk", [2, 6, 256])
def test_the_mean_image_is_subtracted(chunk, monkeypatch):
    monkeypatch.setattr(validation_set, "CHUNK", chunk)
    images = np.random.default_rng(5).integers(0, 100, (10, 6, 6, 3), np.uint8)
    rest = images.reshape(10, -1).astype(np.float64)
    rest -= rest.mean(axis=0)
    rest /= np.linalg.norm(rest, axis=1, keepdims=True)
    expected = np.sum((rest[0::2] - rest[1::2]) ** 2, axis=1)
    np.testing.assert_allclose(raw_pixel_distances(encoded(images), 6, "few"), expected, rtol=1e-5)
    brighter = encoded(images + np.uint8(100))  # a constant offset has no effect
    np.testing.assert_allclose(raw_pixel_distances(brighter, 6, "few"), expected, rtol=1e-4)


@pytest.mark.parametrize("size", [1, 2, 3, 9])
def test_the_ranks_share_the_pairs_of_a_set(tmp_path, size):
    """And name an image by its place in the set; the last ranks of many have none."""
    images = encoded(np.random.default_rng(0).integers(0, 256, (14, 6, 6, 3), np.uint8))
    images[11] = b"no image"
    write_pairs(tmp_path / "few.bin", images, np.arange(7) % 2 == 0)
    ranks = [PairsOfRank.read("few", tmp_path / "few.bin", rank, size) for rank in range(size)]
    assert [image for rank in ranks for image in rank.images] == images
    assert not any(len(rank.images) % 2 for rank in ranks) and all(len(rank.issame) == 7 for rank in ranks)
    (owner,) = (rank for rank in ranks if images[11] in rank.images)
    for start in (0, 1):
        with pytest.raises(ValueError, match="image 11 of the validation set few"):
            owner.decode(start, 14, 6)
    with pytest.raises(ValueError, match="image 0 of the validation set few has 6x6 pixels instead of 3x3"):
        ranks[0].decode(0, 1, 3)
    pixels = ranks[0].decode(0, 1, 6)
    assert ranks[0].decode(0, 1, 3, resize=True).shape == (1, 3, 3, 3)
    np.testing.assert_array_equal(ranks[0].decode(0, 1, 6, resize=True), pixels)
