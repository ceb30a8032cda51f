"""Alignment against general least squares, and on an image with known points."""

import cv2
import numpy as np
import pytest

from partial_fc.evaluation.ijb.alignment import ARCFACE, SIZE, align, read_rgb, similarities


def slow_similarity(points):
    """Solves x' = a x - b y + tx, y' = b x + a y + ty for (a, b, tx, ty) with the general least-squares solver."""
    rows, values = [], []
    for (x, y), (to_x, to_y) in zip(points, ARCFACE):
        rows += [[x, -y, 1, 0], [y, x, 0, 1]]
        values += [to_x, to_y]
    a, b, x, y = np.linalg.lstsq(np.array(rows), np.array(values), rcond=None)[0]
    return np.array([[a, -b, x], [b, a, y]])


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
    assert transforms.shape == (40, 2, 3)
    for row in range(40):
        np.testing.assert_allclose(transforms[row], slow_similarity(points[row]), atol=1e-9)
        np.testing.assert_allclose(transforms[row], umeyama(points[row]), atol=1e-9)


def test_the_template_maps_to_itself():
    np.testing.assert_allclose(similarities(ARCFACE[None])[0], [[1, 0, 0], [0, 1, 0]], atol=1e-12)


def test_landmarks_map_to_the_template():
    """Five spots in an image rotated by 160 degrees and scaled by two are mapped to the landmarks of the template."""
    turn = 2 * np.array([[np.cos(2.8), -np.sin(2.8)], [np.sin(2.8), np.cos(2.8)]])
    points = ARCFACE @ turn.T + (330, 260)
    picture = np.zeros((400, 480, 3), np.uint8)
    for channel, (x, y) in enumerate(points):
        cv2.circle(picture, (int(x), int(y)), 6, [(255 if c == channel % 3 else 0) for c in range(3)], -1)
    face = align(picture, similarities(points[None])[0])
    assert face.shape == (SIZE, SIZE, 3) and face.dtype == np.uint8
    for channel, (x, y) in enumerate(ARCFACE):
        patch = face[int(y) - 5 : int(y) + 7, int(x) - 5 : int(x) + 7, channel % 3].astype(float)
        weights = patch / patch.sum()
        middle = (weights.sum(axis=0) @ np.arange(12), weights.sum(axis=1) @ np.arange(12))
        np.testing.assert_allclose(middle, (x - int(x) + 5, y - int(y) + 5), atol=0.5)  # half of the points' rounding


def test_pixels_outside_the_image_are_black():
    face = align(np.full((112, 112, 3), 200, np.uint8), np.array([[1.0, 0, 30], [0, 1, 0]]))
    assert (face[:, :30] == 0).all() and (face[:, 30:] == 200).all()


def test_images_are_read_as_rgb(tmp_path):
    path = str(tmp_path / "a.png")
    picture = np.random.default_rng(0).integers(0, 256, (5, 9, 3), dtype=np.uint8)
    cv2.imwrite(path, picture[:, :, ::-1])
    assert np.array_equal(read_rgb(path), picture)


def test_damaged_images_are_reported(tmp_path):
    path = str(tmp_path / "a.jpg")
    cv2.imwrite(path, np.random.default_rng(0).integers(0, 256, (50, 60, 3), dtype=np.uint8))
    whole = open(path, "rb").read()
    for content, message in [
        (whole[:700], "a.jpg is a JPEG truncated after 700 bytes"),
        (b"", r"a.jpg cannot be decoded \(0 bytes\)"),
        (b"no image", r"a.jpg cannot be decoded \(8 bytes\)"),
    ]:
        open(path, "wb").write(content)
        with pytest.raises(ValueError, match=message):
            read_rgb(path)
    with pytest.raises(OSError, match="b.jpg"):
        read_rgb(str(tmp_path / "b.jpg"))
