"""Decoding and augmentation of single images."""

import cv2
import numpy as np
import pytest

from partial_fc.data.transforms import DRAWS, Augmentation, augment, decode_color, decode_rgb


@pytest.fixture
def image():
    """Smooth colors, which JPEG changes by a few gray levels only."""
    y, x = np.mgrid[0:32, 0:24]
    return np.stack([8 * y, 10 * x, 100 + y - x], axis=2).clip(0, 255).astype(np.uint8)


def encode(image, extension):
    return cv2.imencode(extension, np.ascontiguousarray(image[..., ::-1]))[1].tobytes()


def draws(**places):
    """Random numbers that leave the image unchanged, except those given as d<index>."""
    return [places.get(f"d{place}", 0.9) for place in range(DRAWS)]


def test_decoding_gives_rgb(image):
    assert (decode_rgb(encode(image, ".png"), (32, 24)) == image).all()
    assert (decode_rgb(encode(image, ".webp"), (32, 24)).astype(int) - image).std() < 6
    assert np.abs(decode_rgb(encode(image, ".jpg"), (32, 24)).astype(int) - image).mean() < 6


def test_a_gray_image_has_three_equal_channels(image):
    grey = cv2.imencode(".png", image[..., 0])[1].tobytes()
    assert (decode_rgb(grey, (32, 24)) == image[..., :1]).all()
    with pytest.raises(ValueError, match="has 1 channel"):
        decode_color(grey, (32, 24))
    assert (decode_color(encode(image, ".png"), (32, 24)) == image).all()


def test_mirror(image):
    how = Augmentation(rand_mirror=True)
    assert (augment(image.copy(), draws(d0=0.4), how) == image[:, ::-1]).all()
    assert (augment(image.copy(), draws(d0=0.5), how) == image).all()
    assert (augment(image.copy(), draws(d0=0.4), Augmentation()) == image).all()


def test_jpeg_compression_of_every_second_image_with_the_drawn_quality(image):
    noisy = np.random.default_rng(0).integers(0, 256, image.shape).astype(np.uint8)

    def error(lowest, hit, strength):
        changed = augment(noisy.copy(), draws(d7=hit, d8=strength), Augmentation(jpeg_compression=lowest))
        return np.abs(changed.astype(int) - noisy).mean()

    assert error(10, 0.5, 0.0) == 0 and error(0, 0.4, 0.0) == 0
    assert error(10, 0.4, 0.0) > error(10, 0.4, 0.5) > error(10, 0.4, 0.99) > 0
    assert error(50, 0.4, 0.0) == error(10, 0.4, 40.5 / 91)  # the same quality, 50
    assert error(100, 0.4, 0.0) == error(10, 0.4, 0.999)  # and 100
    # The order of the channels is kept: a red image stays red.
    red = np.zeros_like(image)
    red[..., 0] = 200
    changed = augment(red.copy(), draws(d7=0.0, d8=0.5), Augmentation(jpeg_compression=20))
    assert np.abs(changed.astype(int) - red).max() < 12


def test_erased_squares_have_their_size_and_are_clipped(image):
    how = Augmentation(cutout=10)
    assert (augment(image.copy(), draws(d4=0.6, d5=0.5, d6=0.5), how) == image).all()  # every second image
    changed = augment(image.copy(), draws(d4=0.4, d5=0.5, d6=0.5), how)
    erased = np.zeros(image.shape[:2], bool)
    erased[11:21, 7:17] = True
    assert (changed[erased] == 128).all() and (changed[~erased] == image[~erased]).all()
    moved = augment(image.copy(), draws(d4=0.4, d5=0.25, d6=0.5), how)  # up
    assert (moved[3:13, 7:17] == 128).all() and (moved[13:] == image[13:]).all()
    for place in (0, 0.999):
        changed = augment(image.copy(), draws(d4=0.4, d5=place, d6=place), how)
        assert 25 <= (changed == 128).all(axis=2).sum() <= 50


def test_color_jitter_matches_its_definition(image):
    def jittered(brightness, contrast, saturation):
        factors = {"d1": brightness / 2, "d2": contrast / 2, "d3": saturation / 2}  # 1 - c .. 1 + c with c = 1
        return augment(image.copy(), draws(**factors), Augmentation(color_jittering=1)).astype(float)

    grey = image @ np.array([0.299, 0.587, 0.114])
    assert (jittered(1, 1, 1) == image).all()
    np.testing.assert_allclose(jittered(0.5, 1, 1), image * 0.5, atol=0.51)
    np.testing.assert_allclose(jittered(1, 0, 1), np.full(image.shape, grey.mean()), atol=0.51)
    np.testing.assert_allclose(jittered(1, 1, 0), np.repeat(grey[..., None], 3, axis=2), atol=0.51)
    assert jittered(2, 1, 1).max() == 255  # clipped, not wrapped around
    darker = augment(image.copy(), draws(d1=0.0, d2=0.5, d3=0.5), Augmentation(color_jittering=0.2))
    np.testing.assert_allclose(darker, image * 0.8, atol=0.51)
