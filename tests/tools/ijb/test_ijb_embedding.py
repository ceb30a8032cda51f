"""Alignment against Umeyama's method, and weights of images by hand; test_ijb_command.py embeds whole templates."""

import numpy as np

from partial_fc_tools.ijb.evaluate import media_weights
from partial_fc_tools.sets.alignment import ARCFACE, align, similarities


def umeyama(points):
    """Umeyama's method: singular values of the covariance, with the sign that excludes reflections."""
    middle, target = points.mean(axis=0), ARCFACE.mean(axis=0)
    covariance = (ARCFACE - target).T @ (points - middle) / 5
    u, d, vt = np.linalg.svd(covariance)
    sign = np.array([1, np.sign(np.linalg.det(u) * np.linalg.det(vt))])
    turn = u @ np.diag(sign) @ vt
    scale = (d * sign).sum() / ((points - middle) ** 2).sum() * 5
    return np.column_stack([scale * turn, target - scale * turn @ middle])


def test_similarities_are_the_least_squares_solution():
    rng = np.random.default_rng(0)
    turns = [np.array([[np.cos(t), -np.sin(t)], [np.sin(t), np.cos(t)]]) for t in rng.uniform(-3, 3, 40)]
    points = np.stack([ARCFACE @ turn.T * rng.uniform(0.2, 5) + rng.normal(0, 90, 2) for turn in turns])
    points += rng.normal(0, 6, points.shape)
    points[0] = points[0, ::-1] * (-1, 1)  # a reflection, which no rotation can undo
    points[1, :, 1] = 7.0  # on a line
    transforms = similarities(points)
    np.testing.assert_allclose(transforms, list(map(umeyama, points)), atol=1e-9)


def test_pixels_outside_the_image_are_black():
    face = align(np.full((112, 112, 3), 200, np.uint8), np.array([[1.0, 0, 30], [0, 1, 0]]))
    assert (face[:, :30] == 0).all() and (face[:, 30:] == 200).all()


def test_images_share_the_weight_of_their_media_within_a_template():
    """Ids of media have up to nine digits."""
    media = [5, 5 + 2**16, 5, 999_999_999, 5, 5, 999_999_999, 999_999_999]
    templates = [0, 0, 0, 0, 1, 1, 1, 2**16]
    shares = media_weights(np.array(templates, np.int32), np.array(media, np.int32))
    assert shares.tolist() == [1 / 2, 1, 1 / 2, 1, 1 / 2, 1 / 2, 1, 1]
