"""Decoding and augmentation of single images."""

import cv2
import numpy as np
import pytest

from partial_fc.images import augment, decode_rgb, erase_square, jitter_color

OFF = np.full(7, 0.9)  # draws that leave the image alone


@pytest.fixture
def image():
    """Smooth colours, so that JPEG keeps them within a few grey levels."""
    y, x = np.mgrid[0:32, 0:24]
    return np.stack([8 * y, 10 * x, 100 + y - x], axis=2).clip(0, 255).astype(np.uint8)


def encode(image, extension):
    return cv2.imencode(extension, np.ascontiguousarray(image[..., ::-1]))[1].tobytes()


def test_decoding_gives_rgb(image):
    out = np.zeros_like(image)
    decode_rgb(encode(image, ".png"), out)
    assert (out == image).all()
    decode_rgb(encode(image, ".jpg"), out)
    assert np.abs(out.astype(int) - image).mean() < 6


def test_a_grey_image_is_grey_in_three_channels(image):
    out = np.zeros_like(image)
    decode_rgb(cv2.imencode(".png", image[..., 0])[1].tobytes(), out)
    assert (out == image[..., :1]).all()


def test_damaged_images_are_refused(image):
    out = np.zeros_like(image)
    jpeg = encode(image, ".jpg")
    for cut in (len(jpeg) // 2, len(jpeg) - 2):
        with pytest.raises(ValueError, match=f"cut short after {cut} bytes"):
            decode_rgb(jpeg[:cut], out)
    for content in (b"", b"nothing to see", jpeg[:40] + jpeg[-2:]):
        with pytest.raises(ValueError, match="cannot be decoded"):
            decode_rgb(content, out)
    with pytest.raises(ValueError, match="has 32x24 pixels instead of 24x32"):
        decode_rgb(jpeg, np.zeros((24, 32, 3), np.uint8))


def test_mirror(image):
    changed = image.copy()
    augment(changed, np.r_[0.4, OFF[1:]], True, 0, 0)
    assert (changed == image[:, ::-1]).all()
    for draw, mirror in ((0.5, True), (0.4, False)):
        changed = image.copy()
        augment(changed, np.r_[draw, OFF[1:]], mirror, 0, 0)
        assert (changed == image).all()


def test_erased_squares_have_their_size_and_stay_inside(image):
    changed = image.copy()
    erase_square(changed, 10, 0.5, 0.5)
    assert (changed[11:21, 7:17] == 128).all()
    untouched = np.ones(image.shape[:2], bool)
    untouched[11:21, 7:17] = False
    assert (changed[untouched] == image[untouched]).all()
    for row, column in ((0, 0), (0.999, 0.999)):
        changed = image.copy()
        erase_square(changed, 10, row, column)
        assert 25 <= (changed == 128).all(axis=2).sum() <= 50


def test_cutoff_hits_every_second_image(image):
    changed = image.copy()
    augment(changed, np.r_[OFF[:4], 0.6, 0.5, 0.5], False, 10, 0)
    assert (changed == image).all()
    augment(changed, np.r_[OFF[:4], 0.4, 0.5, 0.5], False, 10, 0)
    assert (changed[11:21, 7:17] == 128).all()


def test_color_jitter_does_what_it_says(image):
    def jittered(*factors):
        changed = image.copy()
        jitter_color(changed, np.array(factors))
        return changed.astype(float)

    grey = image @ np.array([0.299, 0.587, 0.114])
    assert (jittered(1, 1, 1) == image).all()
    np.testing.assert_allclose(jittered(0.5, 1, 1), image * 0.5, atol=0.51)
    np.testing.assert_allclose(jittered(1, 0, 1), np.full(image.shape, grey.mean()), atol=0.51)
    np.testing.assert_allclose(jittered(1, 1, 0), np.repeat(grey[..., None], 3, axis=2), atol=0.51)
    assert jittered(2, 1, 1).max() == 255  # clipped, not wrapped around


def test_color_jitter_stays_within_its_share(image):
    darkest, brightest = image.copy(), image.copy()
    augment(darkest, np.r_[0.9, 0.0, 0.5, 0.5, 0.9, 0, 0], False, 0, 0.2)
    augment(brightest, np.r_[0.9, 1.0, 0.5, 0.5, 0.9, 0, 0], False, 0, 0.2)
    np.testing.assert_allclose(darkest, image * 0.8, atol=0.51)
    np.testing.assert_allclose(brightest, np.minimum(image * 1.2, 255), atol=0.51)
