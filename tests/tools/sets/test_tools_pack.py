"""pack: a folder per identity -> a face set."""

import io
import json
import os

import cv2
import numpy as np
import pytest
from PIL import Image

from command_line import call
from face_sets import images_of, picture, with_orientation
from image_forms import FORMS, draw, hugging_face, write_dataset, write_records, write_shard
from partial_fc.data.encoding import ImageOptions, encode_for_set, resize
from partial_fc.data.image_formats import header
from partial_fc.data.names import read_names, write_names
from partial_fc.data.sources.arrow import class_names
from partial_fc.data.transforms import WrongSizeError, decode_any_size
from partial_fc_tools.sets import pack

SMALL, SIZE = ImageOptions(size=16), ("--size", 16)


def encoded(ending=".jpg", **how):
    return cv2.imencode(ending, picture(**how))[1].tobytes()


def write_tree(root, files):
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return str(root)


@pytest.fixture
def tree(tmp_path):
    """3 identities; 40 images of the second, so that there is more than one chunk."""
    files = {f"b/{number}.jpg": encoded(seed=number) for number in range(40)}
    others = {"c/1.png": encoded(".png", seed=101), "c/2.webp": encoded(".webp", seed=102)}
    return write_tree(tmp_path / "tree", {**files, "a/x.jpg": encoded(seed=100), **others})


def test_labels_follow_the_sorted_folders_and_jpegs_are_kept(tree, tmp_path, capsys):
    out = str(tmp_path / "set")
    call(pack, tree, out, *SIZE)
    printed = capsys.readouterr().out
    assert printed.startswith(f"{out}: 43 images of 3 identities, ") and "; 0 resized, 2 encoded, 0 left" in printed
    assert sorted(os.listdir(out)) == ["identities.txt", "property", "train.idx", "train.rec"]
    images = images_of(out)
    assert [label for _, label in images] == [0] + [1] * 40 + [2] * 2
    order = sorted(f"{number}.jpg" for number in range(40))
    expected = [open(os.path.join(tree, "b", name), "rb").read() for name in order]
    assert [image for image, label in images if label == 1] == expected
    assert read_names(os.path.join(out, "train.rec"), 3) == ["a", "b", "c"]
    assert open(os.path.join(out, "property")).read() == "3,16,16\n"


def test_workers_do_not_change_the_bytes_and_the_quality_does(tree, tmp_path):
    for workers, quality in ((1, 95), (2, 95), (1, 20)):
        call(pack, tree, tmp_path / f"{workers}-{quality}", *SIZE, "--workers", workers, "--quality", quality)
    for name in ("train.rec", "train.idx", "property", "identities.txt"):
        assert (tmp_path / "1-95" / name).read_bytes() == (tmp_path / "2-95" / name).read_bytes()
    low, high = ([len(image) for image, _ in images_of(tmp_path / name)[-2:]] for name in ("1-20", "1-95"))
    assert max(low) < min(high)


def test_a_thumbnail_does_not_count():
    thumbnail, kept = encoded(seed=8), encoded(seed=9)
    large = with_orientation(encoded(seed=9, size=(20, 24)), 1, thumbnail=thumbnail)
    assert header(large) == (20, 24, 3, 1)
    with pytest.raises(WrongSizeError, match="20x24"):
        encode_for_set(large, SMALL)
    assert encode_for_set(large, SMALL._replace(resize=True))[1] == "resized"
    for size in ((16, 16), (8, 8)):
        small = with_orientation(kept, 1, thumbnail=encoded(seed=8, size=size))
        assert encode_for_set(small, SMALL) == (small, "kept")
    gray = with_orientation(encoded(seed=9, channels=1), 1, thumbnail=thumbnail)
    assert encode_for_set(gray, SMALL)[1] == "encoded"


def test_png_is_stored_unchanged_if_it_is_the_format():
    image, options = encoded(".png", seed=6), SMALL._replace(format="png", resize=True)
    assert encode_for_set(image, options) == (image, "kept")
    converted, done = encode_for_set(encoded(".png", seed=6, channels=4), options)
    pixels = cv2.imdecode(np.frombuffer(converted, np.uint8), cv2.IMREAD_UNCHANGED)
    assert done == "encoded" and (pixels == picture(6, channels=4)[..., :3]).all()
    for size in ((16, 8), (8, 16)):
        assert encode_for_set(encoded(".png", size=size), options)[1] == "resized"
    file, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 1
    Image.fromarray(picture()).save(file, "PNG", exif=exif)
    converted, done = encode_for_set(file.getvalue(), options)
    assert done == "encoded" and b"eXIf" in file.getvalue() and b"eXIf" not in converted


@pytest.mark.parametrize(
    "size, how", [((40, 20), cv2.INTER_AREA), ((8, 8), cv2.INTER_CUBIC), ((8, 40), cv2.INTER_CUBIC)]
)
def test_images_are_scaled_without_aliasing_or_blur(size, how):
    image = picture(3, size)
    np.testing.assert_array_equal(resize(image, (16, 18)), cv2.resize(image, (18, 16), interpolation=how))


def test_another_size_is_refused_or_resized(tmp_path, capsys):
    tree = write_tree(tmp_path / "tree", {"a/big.jpg": encoded(size=(20, 24)), "a/small.jpg": encoded(size=(8, 8))})
    out = str(tmp_path / "set")
    for skip_bad in ([], ["--skip-bad"]):
        with pytest.raises(ValueError, match="a/big.jpg has 20x24 pixels .*--resize"):
            call(pack, tree, out, *SIZE, *skip_bad)
    assert not os.path.exists(out)
    call(pack, tree, out, *SIZE, "--resize")
    assert "; 2 resized, 0 encoded, " in capsys.readouterr().out
    assert [header(image) for image, _ in images_of(out)] == [(16, 16, 3, 1)] * 2


@pytest.mark.parametrize(
    "content, what",
    [
        (encoded(seed=7)[:-60], "truncated"),
        (encoded(".png", seed=7)[:-20], "truncated"),
        (encoded(".webp", seed=7)[:-20], "truncated"),
        (b"no image", "cannot be decoded"),
        (encoded(size=(64, 64))[:-300] + b"\0" * 298 + b"\xff\xd9", "damaged"),
    ],
)
def test_damaged_files_are_refused_or_skipped(tmp_path, content, what, capsys):
    tree = write_tree(tmp_path / "tree", {"a/bad.jpg": content, "a/good.jpg": encoded(), "b/bad.jpg": content})
    out = str(tmp_path / "set")
    options = [*SIZE, "--resize"]
    with pytest.raises(ValueError, match=f"a/bad.jpg .*{what}.*--skip-bad"):
        call(pack, tree, out, *options)
    assert not os.path.exists(out)
    call(pack, tree, out, *options, "--skip-bad")
    printed = capsys.readouterr()
    assert "1 image of 1 identity, " in printed.out and "2 left out as bad, 1 identity left out as e" in printed.out
    left_out = printed.err.replace(f"left out: {tree}/", "").splitlines()
    assert [line.split()[0] for line in left_out] == ["a/bad.jpg", "b/bad.jpg", "b"]
    assert read_names(os.path.join(out, "train.rec"), 1) == ["a"]


def test_other_files_in_a_tree(tmp_path, capsys):
    others = ("a/note.txt", "a/film.mov", "a/.hidden.jpg", "readme.md", ".cache/1.jpg")
    tree = write_tree(tmp_path / "tree", {"a/1.jpg": encoded(), **dict.fromkeys(others, b"")})
    call(pack, tree, tmp_path / "set", *SIZE)
    assert capsys.readouterr().out.endswith(", 3 other files ignored: readme.md, a/film.mov, a/note.txt\n")
    os.makedirs(os.path.join(tree, "b"))
    refused = [
        ({}, "tree/b contains no images: .*--skip-bad"),
        ({"b/1.heic": b""}, "only 1.heic: convert"),
        ({"b/1.jpg": encoded(), "b/deep/2.jpg": encoded()}, "tree/b/deep is a folder"),
    ]
    for files, message in refused:
        write_tree(tmp_path / "tree", files)
        with pytest.raises(ValueError, match=message):
            call(pack, tree, tmp_path / "other", *SIZE)
    with pytest.raises(OSError, match="nothing is not a folder"):
        call(pack, tmp_path / "nothing", tmp_path / "other")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="contains no folders"):
        call(pack, tmp_path / "empty", tmp_path / "other")


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_set_is_packed(form, tmp_path, monkeypatch, capsys):
    if form in ("parquet", "saved"):
        pytest.importorskip("datasets")
    monkeypatch.syspath_prepend(str(tmp_path / form))
    source, out = FORMS[form](tmp_path / form, draw()), tmp_path / "out"
    call(pack, source, out, *SIZE, "--format", "png", "--workers", 1)
    packed = images_of(out)
    assert [label for _, label in packed] == [label for label, images in enumerate(draw()) for _ in images]
    expected = [decode_any_size(image) for images in draw() for image in images]
    np.testing.assert_array_equal([decode_any_size(image) for image, _ in packed], expected)
    names = [f"{label:03}" if form == "folders" else str(label) for label in range(6)]
    assert read_names(out / "train.rec", 6) == names
    assert "20 images of 6 identities, " in capsys.readouterr().out


def test_names_of_classes_in_a_table_are_kept(tmp_path):
    datasets = pytest.importorskip("datasets")
    table = hugging_face(draw()).cast_column("label", datasets.ClassLabel(names=["f", "b", "c", "d", "e", "a"]))
    table.to_parquet(str(tmp_path / "train.parquet"))
    call(pack, tmp_path / "train.parquet", tmp_path / "out", *SIZE)
    assert read_names(tmp_path / "out" / "train.rec", 6) == ["f", "b", "c", "d", "e", "a"]


@pytest.mark.parametrize(
    "content",
    [{}, {"info": None}, {"info": {"features": {"label": 1}}}, 3]
    + [{"info": {"features": {"label": {"names": [name]}}}} for name in (1, "\ud800", "a\0", "a\nb")],
)
def test_other_metadata_of_a_table_has_no_names(content):
    assert class_names({b"huggingface": json.dumps(content).encode()}, "label", 1) == []
    assert class_names(None, "label", 1) == class_names({b"huggingface": b"{"}, "label", 1) == []


def test_a_set_is_packed_again_with_its_names_and_another_size(tmp_path):
    first, out = tmp_path / "first", tmp_path / "out"
    write_records(first, draw())
    write_names(first, "ghiklm")
    with pytest.raises(ValueError, match="train.rec: image with key 1 at offset 0 has 16x16 .*use --resize"):
        call(pack, first, out, "--size", 8)
    call(pack, first / "train.rec", out, "--size", 8, "--resize", "--workers", 2)
    assert read_names(out / "train.rec", 6) == list("ghiklm") and len(images_of(out)) == 20
    assert (out / "property").read_text() == "6,8,8\n"


def test_labels_without_images_and_bad_images_of_a_set_are_left_out(tmp_path, monkeypatch, capsys):
    samples = {"a.png": encoded(".png"), "a.cls": b"7", "b.png": b"damaged", "b.cls": b"3", "c.png": encoded(".png")}
    write_shard(tmp_path / "shard.tar", {**samples, "c.cls": b"0"})
    with pytest.raises(ValueError, match=r"shard.tar: b.png at offset \d+ cannot be decoded .*, or use --skip-bad"):
        call(pack, tmp_path / "shard.tar", tmp_path / "out", *SIZE)
    call(pack, tmp_path / "shard.tar", tmp_path / "out", *SIZE, "--skip-bad")
    assert [label for _, label in images_of(tmp_path / "out")] == [0, 1]
    assert read_names(tmp_path / "out" / "train.rec", 2) == ["0", "7"]
    assert "1 left out as bad, 1 identity left out as empty" in capsys.readouterr().out

    monkeypatch.syspath_prepend(str(tmp_path / "several"))
    rec = write_dataset(tmp_path / "several", draw())
    module = tmp_path / "several" / "faces_several.py"
    module.write_text(module.read_text().replace("int(path.parent.name)", "[int(path.parent.name), 9]"))
    with pytest.raises(ValueError, match="has several labels for an image, but a face set has one"):
        call(pack, rec, tmp_path / "other", *SIZE)
