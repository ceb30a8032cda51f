"""Orientation and color of image files and of Pillow images, for every command that reads them."""

import io
import struct

import cv2
import numpy as np
import pytest
from PIL import Image, features

from face_sets import face_batches
from partial_fc.data.encoding import ImageOptions, encode_for_set
from partial_fc.data.folder import list_folder
from partial_fc.data.sources.dataset import as_arrays, as_image
from partial_fc.data.transforms import decode_any_size
from partial_fc.evaluation.validation_set import decode_faces
from partial_fc_tools.inference.image_folder import read_face
from partial_fc_tools.sets.alignment import read_rgb

H, W = 32, 48
COLORS = np.array([[(220, 30, 20), (20, 200, 40)], [(10, 20, 210), (230, 220, 40)]], np.uint8)
PIXELS = COLORS.repeat(H // 2, 0).repeat(W // 2, 1)
RGB = Image.fromarray(PIXELS)
GRAY = RGB.convert("L")
TRANSPARENT = Image.fromarray(np.dstack([PIXELS, np.arange(H * W).reshape(H, W) % 256]).astype(np.uint8))
SIXTEEN = np.asarray(GRAY).astype(np.uint16) * 256 + 77
SHOWN = {  # EXIF orientation -> the transposition that makes the image upright
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
ENDINGS = {
    "jpeg": {"quality": 95},
    "png": {},
    "tiff": {},
    "webp": {"lossless": True, "exact": True},
    "avif": {"quality": 95},
    "gif": {},
}
with_avif = pytest.mark.skipif("avif" not in features.modules, reason="pip install 'pillow>=11.3'")


def written(image, ending, **how):
    """The content of a file in a format."""
    file = io.BytesIO()
    image.save(file, ending, **{**ENDINGS[ending], **how})
    return file.getvalue()


def oriented(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def close(pixels, expected, tolerance=9):
    """Whether the four colors are as expected, except near their borders, where JPEG mixes them."""
    expected = np.asarray(expected)
    if pixels.shape[:2] != expected.shape[:2] or pixels.dtype != np.uint8 or pixels.shape[2:] != (3,):
        return False
    inner = np.ones(pixels.shape[:2], bool)
    for axis, side in enumerate(inner.shape):
        np.moveaxis(inner, axis, 0)[side // 2 - 4 : side // 2 + 4] = False
    return np.abs(pixels.astype(int) - expected)[inner].max() <= tolerance


@pytest.mark.parametrize("orientation", SHOWN)
@pytest.mark.parametrize("ending", ["jpeg", "png", "tiff", "webp", pytest.param("avif", marks=with_avif)])
def test_a_file_and_its_image_of_pillow_are_upright(ending, orientation):
    file = written(RGB, ending, exif=oriented(orientation))
    expected = RGB if orientation == 1 else RGB.transpose(SHOWN[orientation])
    assert close(decode_any_size(file), expected)
    assert close(as_image(Image.open(io.BytesIO(file))), expected)
    assert close(as_arrays(Image.open(io.BytesIO(file))), expected)


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("kind, value", [(3, "H2x"), (4, "I"), (1, "B3x")])
@pytest.mark.parametrize("before", [[], [b"http://ns.adobe.com/xap/1.0/\0<x/>"]])
@pytest.mark.parametrize("marker", [b"\xff\xdb", b"\xff\xc0"], ids=["tables", "frame"])
def test_exif_of_a_jpeg_counts_in_any_byte_order_type_and_place(order, kind, value, before, marker):
    """OpenCV 4.11 reads only the first application segment, and Pillow no orientation of type BYTE."""
    start = b"II*\0" if order == "<" else b"MM\0*"
    tiff = start + struct.pack(f"{order}IHHHI{value}", *(8, 1, 0x0112, kind, 1, 3)) + bytes(4)
    segments = [b"\xff\xe1" + struct.pack(">H", len(each) + 2) + each for each in (*before, b"Exif\0\0" + tiff)]
    start, _, rest = written(RGB, "jpeg").partition(marker)
    jpeg = start + b"".join(segments) + marker + rest
    for image in (decode_any_size(jpeg), as_image(Image.open(io.BytesIO(jpeg)))):
        assert close(image, PIXELS[::-1, ::-1])


def palette():
    image = RGB.quantize(8)
    image.info["transparency"] = bytes([0, 128, 255] * 2)
    return image


def encoded_by_opencv(pixels, ending):
    return cv2.imencode(ending, pixels)[1].tobytes()


FRAMES = {"save_all": True, "append_images": [Image.fromarray(255 - PIXELS)]}
FILES = {  # content, expected image
    "CMYK": (written(RGB.convert("CMYK"), "jpeg"), RGB),
    "CMYK, TIFF": (written(RGB.convert("CMYK"), "tiff"), RGB),
    "LAB": (written(RGB.convert("LAB"), "tiff"), RGB),
    "YCbCr": (written(RGB, "tiff", compression="jpeg", quality=95), RGB),
    "gray": (written(GRAY, "jpeg"), GRAY.convert("RGB")),
    "gray, alpha": (written(TRANSPARENT.convert("LA"), "png"), GRAY.convert("RGB")),
    **{f"alpha, {name}": (written(TRANSPARENT, name), RGB) for name in ("png", "tiff", "webp")},
    "palette, alpha": (written(palette(), "png"), RGB),
    "palette, GIF": (written(RGB.quantize(8), "gif", transparency=0), RGB),
    "1 bit": (written(GRAY.convert("1", dither=0), "png"), GRAY.convert("1", dither=0).convert("RGB")),
    "gray, 16 bits": (encoded_by_opencv(SIXTEEN, ".png"), GRAY.convert("RGB")),
    "gray, 16 bits, TIFF": (encoded_by_opencv(SIXTEEN, ".tiff"), GRAY.convert("RGB")),
    "16 bits": (encoded_by_opencv(PIXELS[..., ::-1].astype(np.uint16) * 256 + 77, ".png"), RGB),
    **{f"the first frame, {name}": (written(RGB, name, **FRAMES), RGB) for name in ("gif", "png", "webp", "tiff")},
}


@pytest.mark.parametrize("kind", FILES)
def test_a_file_of_any_colour_and_its_image_of_pillow_become_the_same_rgb(kind):
    content, expected = FILES[kind]
    assert close(decode_any_size(content), expected, 3)
    assert close(as_image(Image.open(io.BytesIO(content))), expected, 3)


@with_avif
def test_an_avif_has_its_colours_beside_alpha_and_its_first_frame():
    """OpenCV 5.0 swaps red and blue if there is alpha."""
    assert close(decode_any_size(written(TRANSPARENT, "avif")), RGB)
    assert close(decode_any_size(written(RGB, "avif", **FRAMES)), RGB)


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_pixels_without_a_defined_range_are_refused(dtype):
    image = Image.fromarray(SIXTEEN.astype(dtype))
    for read in (lambda: as_image(image), lambda: decode_any_size(written(image, "tiff"))):
        with pytest.raises(ValueError, match="32 bits"):
            read()
    with pytest.raises(ValueError, match="uint16"):
        as_image(np.dstack([SIXTEEN] * 3))


@pytest.mark.parametrize("ending", ["jpeg", "png", "tiff", "webp", "gif", pytest.param("avif", marks=with_avif)])
def test_a_truncated_file_is_refused(ending):
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (H, W, 3)).astype(np.uint8))
    file = written(noise, ending)
    for end in (20, len(file) // 2, len(file) - 40):
        with pytest.raises(ValueError, match="truncated|cannot be decoded"):
            decode_any_size(file[:end])


@pytest.mark.parametrize("ending", ["tiff", "gif"])
def test_a_file_of_too_many_pixels_is_refused_before_it_is_decoded(ending):
    how = {"compression": "group4"} if ending == "tiff" else {}
    with pytest.raises(ValueError, match="is larger than OPENCV_IO_MAX_IMAGE_PIXELS allows"):
        decode_any_size(written(Image.new("1", (8200, 8200)), ending, **how))


# Every reader --------------------------------------------------------------------------------------------


def from_folder(path):
    faces = face_batches(path.parent.parent, 1, (W, W))
    return faces.batch(0, 0).inputs[0].transpose(1, 2, 0)


DOORS = {
    "rec=FOLDER": from_folder,
    "pack": lambda path: decode_any_size(encode_for_set(path.read_bytes(), ImageOptions(W, format="png"))[0]),
    "embed": lambda path: read_face(str(path), (W, W)),
    "evaluate ijb": lambda path: read_rgb(str(path), str(path.parent)),
    "verify": lambda path: decode_faces([path.read_bytes()], W, "pairs")[0],
    "Dataset": lambda path: as_image(Image.open(path)),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("ending", ["jpeg", "png", "tiff", "webp", pytest.param("avif", marks=with_avif)])
def test_every_door_gives_the_same_pixels(tmp_path, door, ending):
    square = RGB.resize((W, W), Image.Resampling.NEAREST)
    (tmp_path / "person").mkdir()
    path = tmp_path / "person" / "photo"  # without an ending
    path.write_bytes(written(square, ending, exif=oriented(6)))
    assert close(DOORS[door](path), square.transpose(Image.Transpose.ROTATE_270))


def test_images_are_found_by_ending_or_content(tmp_path):
    files = {
        **{f"1.{ending}": b"" for ending in ("JPG", "jfif", "gif", "webp", "avif", "tiff")},
        **{f"2_{ending}": written(RGB, ending) for ending in ("jpeg", "png", "tiff", "webp", "gif")},
        "3.JPG_1": written(RGB, "jpeg"),
        "4": encoded_by_opencv(PIXELS, ".bmp"),
        "5.txt": b"BMW and others",
        "6.mov": b"\0\0\0\x20ftypqt  \0\0\0\0qt  ",
        "7.heic": b"\0\0\0\x18ftypheic\0\0\0\0mif1heic",
        "8": b"",
        ".9.jpg": written(RGB, "jpeg"),
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    found = list_folder(tmp_path)
    assert found.others == ["5.txt", "6.mov", "7.heic", "8"] and len(found.images) == len(files) - 5
