"""Template pooling against loops over dicts."""

from collections import defaultdict

import numpy as np
import pytest

from partial_fc.evaluation.ijb.templates import TemplateSums, media_shares, normalized


def slow_templates(embeddings, templates, media, scores, norm_score):
    """The definition: mean of each media of a template, sum of the media, length 1."""
    groups = defaultdict(lambda: defaultdict(list))
    for embedding, template, medium, score in zip(embeddings.astype(np.float64), templates, media, scores):
        length = 1 if norm_score else np.sqrt((embedding**2).sum())
        groups[template][medium].append(embedding / length * score)
    pooled = []
    for template in sorted(groups):
        total = sum(sum(images) / len(images) for images in groups[template].values())
        pooled.append(total / np.sqrt((total**2).sum()))
    return np.array(pooled)


def random_images(seed, count=200, templates=23):
    rng = np.random.default_rng(seed)
    rows = np.concatenate([np.arange(templates), rng.integers(0, templates, count - templates)])
    rng.shuffle(rows)  # images of a template are not adjacent
    embeddings = rng.normal(size=(count, 8)) * rng.uniform(0.1, 9, (count, 1))
    return embeddings.astype(np.float32), rows, rng.integers(0, 5, count), rng.uniform(0, 1, count)


@pytest.mark.parametrize("norm_score", [True, False])
@pytest.mark.parametrize("seed", [0, 1])
def test_pooling_matches_the_definition(norm_score, seed):
    embeddings, templates, media, scores = random_images(seed)
    sums = TemplateSums(23, norm_score)
    sums.add(embeddings, templates, media_shares(templates, media) * scores)
    pooled = sums.normalized()
    assert pooled.dtype == np.float32
    np.testing.assert_allclose(pooled, slow_templates(embeddings, templates, media, scores, norm_score), atol=1e-6)


def test_batch_size_does_not_change_the_result():
    embeddings, templates, media, scores = random_images(2)
    weights = media_shares(templates, media) * scores
    results = []
    for size in (1, 7, 200):
        sums = TemplateSums(23, True)
        for start in range(0, 200, size):
            part = slice(start, start + size)
            sums.add(embeddings[part], templates[part], weights[part])
        results.append(sums.normalized())
    assert np.array_equal(results[0], results[1]) and np.array_equal(results[0], results[2])


def test_shares_by_hand():
    """Media 7 of template 0 has two images; media 7 of template 1 is another one."""
    templates, media = np.array([0, 0, 1, 0], np.int32), np.array([7, 7, 7, 8], np.int32)
    assert media_shares(templates, media).tolist() == [0.5, 0.5, 1, 1]
    largest = np.array([999_999_999, 999_999_999], np.int32)
    assert media_shares(largest, largest).tolist() == [0.5, 0.5]


def test_zeros_stay_zeros():
    assert normalized(np.array([[0.0, 0], [3, 4]])).tolist() == [[0, 0], [0.6, 0.8]]
