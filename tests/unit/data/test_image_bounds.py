"""Images with too many pixels for a photo are refused before memory is allocated."""

import io
import struct
import subprocess
import sys
import zlib

import cv2
import numpy as np
import pytest
from PIL import Image, features

from damage import check_damaged
from partial_fc.data import avif
from partial_fc.data.image_formats import header, opened
from partial_fc.data.transforms import decode_any_size, decode_rgb
from paths import with_root

# Runs in a process of its own, because other tests may have imported OpenCV before our limits were set.
DECODE = """
import sys
from partial_fc.data.transforms import decode_rgb
def peak():  # in MB. Not ru_maxrss, which begins with the peak of the process that has started this one
    return int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))) >> 10
before = peak()
try:
    decode_rgb(sys.stdin.buffer.read(), {size})
except ValueError as error:
    print(error)
print(peak() - before)
"""


def decoded(image, size=None):
    """The error message, and the megabytes that decoding took, in a process of its own."""
    command = [sys.executable, "-c", DECODE.format(size=size)]
    done = subprocess.run(command, input=image, env=with_root(), capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    *message, megabytes = done.stdout.decode().splitlines()
    return "".join(message), int(megabytes)


def png_chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(side, pixels, *chunks):
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    parts = [header, *chunks, png_chunk(b"IDAT", zlib.compress(pixels)), png_chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def test_an_image_of_a_gigapixel_is_refused():
    message, megabytes = decoded(png(32_000, bytes(1 + 3 * 32_000) * 20))
    assert "is larger than OPENCV_IO_MAX_IMAGE_PIXELS allows" in message and megabytes < 100


BLACK = np.zeros((5000, 5000, 3), np.uint8)
ENDINGS = ["jpg", "png", "bmp", "tiff", "gif", "webp", "jp2", "j2k", "hdr", "ppm", "avif"]


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_image_of_another_size_is_refused_before_it_is_decoded(ending):
    """BLACK is 75 MB; a JPEG 2000 takes five times as much."""
    if ending == "hdr":
        content = cv2.imencode(".hdr", BLACK[:2000])[1].tobytes()
    elif f".{ending}" in Image.registered_extensions():
        file = io.BytesIO()
        Image.fromarray(BLACK).save(file, Image.registered_extensions()[f".{ending}"])
        content = file.getvalue()
    else:
        pytest.skip("pip install 'pillow>=11.3'")
    height = 2000 if ending == "hdr" else 5000
    message, megabytes = decoded(content, (112, 112))
    assert message == f"has {height}x5000 pixels instead of 112x112" and megabytes < 60 + len(content) / 1e6


def test_the_size_of_a_jpeg_2000_is_that_of_its_codestream():
    file = io.BytesIO()
    Image.fromarray(BLACK).save(file, "JPEG2000")
    before, found, after = file.getvalue().partition(b"ihdr")
    assert (
        found
        and "has 5000x5000 pixels" in decoded(before + found + bytes([0, 0, 0, 112]) * 2 + after[8:], (112, 112))[0]
    )


with_avif = pytest.mark.skipif("avif" not in features.modules, reason="pip install 'pillow>=11.3'")


def avif_of(image, *others):
    file = io.BytesIO()
    Image.fromarray(image).save(file, "AVIF", save_all=bool(others), append_images=map(Image.fromarray, others))
    return file.getvalue()


def named(content, *side):
    """An AVIF whose header has another size than its frames."""
    before, _, after = content.partition(b"ispe\0\0\0\0")
    return before + b"ispe\0\0\0\0" + struct.pack(">II", *side) + after[8:]


def in_extents(content):
    """An AVIF whose only item is in pieces; no piece contains the whole sequence header."""
    before, _, after = content.partition(b"iloc")
    start, length = struct.unpack_from(">II", after, 14)
    parts = [content[start : start + 4], content[start + 4 : start + 7], content[start + 7 : start + length]]
    extents, place = b"", len(content)
    for part in parts:
        extents += struct.pack(">II", place, len(part))
        place += len(part) + 3
    box = after[:12] + struct.pack(">H", len(parts)) + extents
    # The sizes of the boxes that contain iloc grow by as much.
    moved = len(extents) - 8
    sizes = {before.rindex(b"meta") - 4: moved, len(before) - 4: moved}
    content = bytearray(before + b"iloc" + box + after[22:])
    for at, more in sizes.items():
        content[at : at + 4] = struct.pack(">I", int.from_bytes(content[at : at + 4], "big") + more)
    shifted = bytes(content).replace(
        extents,
        b"".join(struct.pack(">II", first + moved + 8, size) for first, size in struct.iter_unpack(">II", extents)),
    )
    return shifted + struct.pack(">I4s", 8 + len(b"---".join(parts)), b"mdat") + b"---".join(parts)


@with_avif
@pytest.mark.parametrize("make", [bytes, in_extents], ids=["whole", "in pieces"])
def test_frames_of_an_avif_are_not_much_larger_than_its_header_says(make):
    large, small = avif_of(BLACK), avif_of(BLACK[:112, :112])
    assert decode_rgb(make(small), (112, 112)).shape == (112, 112, 3)
    message, megabytes = decoded(named(make(large), 112, 112), (112, 112))
    assert message == "has frames of 25,000,000 pixels, but says that it has 112x112" and megabytes < 60


@with_avif
def test_frames_of_an_animated_avif_are_not_decoded():
    content = avif_of(BLACK[:112, :112], BLACK[:112, :112] + 255)
    assert (Image.open(io.BytesIO(content)).n_frames, opened(content).n_frames) == (2, 1)
    assert avif.coded_pixels(content) == 128 * 128  # frames of an animation can have any size with this number of bits
    assert decode_rgb(content, (112, 112)).max() < 9


def test_a_sequence_header_with_all_of_its_parts_is_read():
    """With timing, a decoder model, two layers (one with a tier), and delays, as in the specification of AV1."""
    timing = "1" + "0" * 64 + "1" + "00100" + "1" + "00011" + "0" * 32 + "0" * 10
    layers = "1" + "00001" + "0" * 12 + "01000" + "1" + "1" + "0" * 9 + "1" + "0000" + "0" * 12 + "00111" + "0" + "0"
    size = "0110" + "1000" + "1101111" + "000110001"
    bits = "000" + "0" + "0" + timing + layers + size
    header = int(bits.ljust(240, "0"), 2).to_bytes(30, "big")
    item = b"\x12\0\x0a" + bytes([len(header)]) + header
    assert avif._frame_pixels(item) == 2 ** (7 + 9)
    still = int(("00011" + "00000" + size).ljust(40, "0"), 2).to_bytes(5, "big")
    assert avif._frame_pixels(b"\x12\0\x0e\0\x85\0" + still + item) == 2 ** (7 + 9)
    assert avif._frame_pixels(b"\x08" + still) == 112 * 50


@with_avif
def test_damaged_avifs_are_refused_or_decoded(tmp_path):
    def read(path):
        with open(path, "rb") as file:
            try:
                decode_rgb(file.read(), None)
            except ValueError as error:
                raise ValueError(f"{path} {error}") from None

    check_damaged(tmp_path / "a.avif", in_extents(avif_of(BLACK[:57, :113])), read)


@pytest.mark.timeout(20)
def test_parts_of_an_avif_are_counted():
    """Too many empty items, or too many empty parts of an image."""

    def box(kind, content):
        return struct.pack(">I4s", 8 + len(content), kind) + content

    start = box(b"ftyp", b"avif\0\0\0\0")
    many = struct.pack(">IHH", 0, 0, 60_000) + struct.pack(">HHH", 1, 0, 60_000) * 60_000
    parts = bytes([0x02, 0]) * 5_000_000
    place = len(start) + len(box(b"meta", bytes(4) + box(b"iloc", bytes(22)))) + 8
    one = struct.pack(">IHHHHHII", 0, 0x4400, 1, 1, 0, 1, place, len(parts))
    for content, error in (
        (box(b"meta", bytes(4) + box(b"iloc", many)), "too many items"),
        (box(b"meta", bytes(4) + box(b"iloc", one)) + box(b"mdat", parts), "too many parts"),
        (box(b"mini", b""), "compact header"),
    ):
        with pytest.raises(ValueError, match=error):
            avif.coded_pixels(start + content)


def test_frames_outside_of_an_animated_png_are_not_drawn():
    frame = png_chunk(b"fcTL", struct.pack(">IIIIIHHBB", 0, 8000, 8000, 0, 0, 1, 1, 0, 0))
    image = png(112, bytes(112 * 337), png_chunk(b"acTL", struct.pack(">II", 2, 0)), frame)
    assert decoded(image, (112, 112))[1] < 60


def test_a_tile_of_a_tiff_has_no_more_pixels_than_an_image():
    tags = {256: 112, 257: 112, 258: 8, 259: 8, 262: 1, 277: 1, 322: 30_000 // 16 * 16, 323: 30_000 // 16 * 16}
    pixels = zlib.compress(bytes(10**6))
    tags |= {324: 8 + 2 + 12 * 10 + 4, 325: len(pixels)}
    fields = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    message, megabytes = decoded(b"II*\0" + struct.pack("<IH", 8, 10) + fields + bytes(4) + pixels, (112, 112))
    assert "is larger" in message and megabytes < 60


def jpeg_2000(side, size=None, components=3, layers=1, levels=0, block=(4, 4), precincts=b"", comment=b""):
    """The codestream of a black image with a changed header."""
    file = io.BytesIO()
    Image.fromarray(np.zeros((side, side, 3), np.uint8)).save(file, "JPEG2000", no_jp2=True, num_resolutions=1)
    _, _, rest = file.getvalue().partition(b"\xff\x5c")
    width, height, tile_width, tile_height = size or (side,) * 4
    siz = struct.pack(">HIIIIIIIIH", 0, width, height, 0, 0, tile_width, tile_height, 0, 0, components)
    siz += bytes([7, 1, 1]) * components
    cod = struct.pack(">BBHBBBBBB", bool(precincts), 0, layers, 1, levels, *block, 0, 1) + precincts
    parts = ((0x51, siz), (0x64, b"\0\0" + comment), (0x52, cod))
    segments = [struct.pack(">BBH", 0xFF, code, 2 + len(data)) + data for code, data in parts]
    return b"\xff\x4f" + b"".join(segments) + b"\xff\x5c" + rest


@pytest.mark.parametrize(
    "options",
    [
        {"size": (8184,) * 4, "precincts": b"\x11"},  # 9 GB and more
        {"size": (8184,) * 4, "levels": 5, "precincts": b"\xff" * 5 + b"\x00"},
        {"size": (2**26 - 1, 1) * 2, "block": (0, 8)},
        {"size": (8184, 8184, 33, 33)},
        {"layers": 65535},
        {"layers": 65535, "comment": b"\xff\x52" + bytes(20)},  # the comment looks like another coding style
        {"components": 16384},
    ],
    ids=str,
)
def test_a_jpeg_2000_of_many_parts_is_refused_before_it_is_decoded(options):
    content = jpeg_2000(112, **options)
    message, megabytes = decoded(content)
    assert message.endswith("save it again") and megabytes < 20


@pytest.mark.parametrize("options", [{}, {"tile_size": (256, 256)}, {"precinct_size": (64, 64)}, {"no_jp2": True}])
def test_a_usual_jpeg_2000_is_decoded(options):
    file = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (800, 800, 3), np.uint8)
    Image.fromarray(noise).save(file, "JPEG2000", quality_layers=[40, 20, 0], **options)
    assert (decode_any_size(file.getvalue()) == noise).all()
    decode_any_size(jpeg_2000(112))


def test_a_jpeg_of_more_scans_than_its_coefficients_need_is_refused():
    """Decoding visits all pixels in each scan: 10,000 scans take more than a minute and cannot be interrupted."""
    file = io.BytesIO()
    Image.new("L", (8184, 8184), 128).save(file, "JPEG", progressive=True)
    usual = file.getvalue()
    place = usual.rfind(b"\xff\xc4")  # tables and pixels of the last scan
    more = usual[:-2] + usual[place:-2] * 1000 + b"\xff\xd9"
    assert header(usual)[:2] == (8184, 8184)
    with pytest.raises(ValueError, match="has 1006 scans of 66,977,856 pixels"):
        header(more)
    thumbnails = b"\xff\xe1" + struct.pack(">H", 2 + 20_000) + b"\xff\xda" * 10_000  # in a segment, and after the image
    assert header(usual[:2] + thumbnails + usual[2:] + b"\xff\xda" * 10_000)[:2] == (8184, 8184)
