"""Sets in forms other than train.rec: the same batches, and errors of damaged sets."""

import errno
import gzip
import io
import os
import shutil
import sys
import tarfile
import time
from itertools import combinations

import cv2
import numpy as np
import pytest

import default
from damage import memory_below
from face_sets import face_batches, picture
from image_forms import PLAIN, SIZE, draw, write_folders, write_shard, write_shards
from open_files import few_open_files
from partial_fc.data.encoding import resize
from partial_fc.data.sources.dataset import DatasetItems, as_image
from partial_fc.data.sources.forms import (
    FOLDER,
    HUB,
    PARQUET,
    RECORDS,
    SAVED,
    form_of,
    is_name,
    open_images,
    set_folder,
    set_name,
    set_path,
    split_columns,
)
from partial_fc.data.sources.shards import expand_shards, index_shard, open_shard
from partial_fc.data.transforms import Augmentation, decode_any_size
from partial_fc.training.tasks import build_task

AUGMENTED = dict(shuffle=True, augmentation=Augmentation(True, 6, 0.3, 10), seed=5)


def batches(rec, size=1, **settings):
    """The batches of two epochs of all ranks, as bytes."""
    ranks = [
        face_batches(rec, 6 // size, SIZE, rank=rank, size=size, **{**AUGMENTED, **settings}) for rank in range(size)
    ]
    read = [rank.batch(epoch, first) for epoch in (0, 1) for first in (0, 6) for rank in ranks]
    for rank in ranks:
        rank.items.records.close()
    return b"".join(images.tobytes() for images, _ in read), np.concatenate([labels for _, labels in read]).tolist()


@pytest.fixture
def in_path(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path / "set"))
    for name in ("faces_set", "own_set"):  # of earlier tests
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


@pytest.mark.parametrize("form", PLAIN)
def test_every_form_has_the_batches_of_train_rec(form, in_path):
    rec = PLAIN[form](in_path / "set", draw())
    expected = PLAIN["records"](in_path / "expected", draw())
    assert batches(rec) == batches(expected)
    assert batches(rec, size=3, min_images_per_class=3) == batches(expected, min_images_per_class=3)


@pytest.mark.parametrize("form", PLAIN)
def test_a_set_that_is_read_again_is_the_same_until_it_is_written_again(form, in_path):
    people, root = draw((3, 3, 3, 3, 3, 3)), in_path / "set"
    rec = PLAIN[form](root, people)
    first = batches(rec), open_images(rec).digest
    assert (batches(rec), open_images(rec).digest) == first  # with the index files of the first opening
    images = open_images(rec)
    images.close()
    images.close()
    files, changed = {"dataset": "set/files"}.get(form, "set"), people[::-1]  # files of the same size
    shutil.rmtree(in_path / files)
    if form == "dataset":
        write_folders(in_path / files, changed)
    else:
        PLAIN[form](root, changed)
    assert batches(rec) == batches(PLAIN["records"](in_path / "expected", changed))
    if form != "dataset":  # its digest depends on the labels only
        assert open_images(rec).digest != first[1]


def test_a_digest_is_that_of_the_content_at_any_path_and_in_any_form(tmp_path):
    digests = {open_images(write_folders(tmp_path / name, draw())).digest for name in ("one", "two")}
    digests.add(open_images(write_shards(tmp_path / "shards", draw())).digest)
    assert len(digests) == 1
    changed = draw()
    changed[1].reverse()
    digests.add(open_images(write_folders(tmp_path / "three", changed)).digest)
    digests.add(open_images(write_folders(tmp_path / "four", draw((3, 2, 4, 5, 3, 3)))).digest)
    assert len(digests) == 3


BAD = {
    "folders": r"001/000\.png cannot be decoded \(8 bytes\); fix or remove it",
    "shards": r"faces-000\.tar: 0003\.png at offset \d+ cannot be decoded",
    "dataset": r"faces_set:Faces\[3\] cannot be read \(AttributeError",
}


@pytest.mark.parametrize("form", BAD)
def test_a_bad_image_is_named_and_skipped_up_to_the_limit(form, in_path):
    people = draw()
    people[1][0] = b"no image"
    rec = PLAIN[form](in_path / "set", people)
    with pytest.raises(ValueError, match=f"{BAD[form]}.*skip_bad_images=1 or more$"):
        face_batches(rec, 5, SIZE).batch(0, 0)
    faces = face_batches(rec, 5, SIZE, skip_bad_images=1)
    assert faces.batch(0, 0)[1].tolist() == [0, 0, 0, 1, 1] and len(faces.log.bad) == 1
    assert len(faces.sample(20)) == 19 and len(faces.sample(4)) == 4


@pytest.mark.parametrize("form", ["records", "folders", "shards"])
def test_an_error_of_the_disk_is_no_bad_image(form, tmp_path, monkeypatch):
    faces = face_batches(PLAIN[form](tmp_path / "set", draw()), 5, SIZE, skip_bad_images=20)

    def fails(*arguments):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    if form == "folders":
        monkeypatch.setattr("partial_fc.data.image_set.read_image_file", fails)
    elif form == "records":
        monkeypatch.setattr(os, "pread", fails)
    else:
        read = os.pread
        whole = [int(size) for size in faces.items.records._sizes]
        monkeypatch.setattr(os, "pread", lambda fd, size, at: (fails if size in whole else read)(fd, size, at))
    with pytest.raises(OSError, match=r"00\d\.png|train\.rec|faces-000\.tar: 0000\.png at offset \d+ cannot be read"):
        faces.batch(0, 0)
    assert not faces.log.bad


def test_an_image_that_has_been_removed_is_bad_and_no_fault_of_the_disk(tmp_path):
    rec = write_folders(tmp_path / "set", draw())
    faces = face_batches(rec, 5, SIZE)
    os.remove(tmp_path / "set" / "000" / "001.png")
    with pytest.raises(ValueError, match=r"000/001\.png cannot be read \(No such file"):
        faces.batch(0, 0)


def test_files_that_are_no_images_are_counted_and_named_once(tmp_path, caplog):
    rec = write_folders(tmp_path / "set", draw())
    os.rename(tmp_path / "set" / "000" / "001.png", tmp_path / "set" / "000" / "001.JPG_1")
    for name in ("001/notes.txt", "readme.md", "001/.hidden"):
        (tmp_path / "set" / name).write_text("text")
    changes = {"rec": rec, "num_classes": 6, "batch_size": 3, "image_size": 16, "max_update": 4, "lr_steps": []}
    task = build_task(default.generate_config(changes=changes, trainer="torch"))
    faces = [task.batches(rank, 2) for rank in range(2)]
    assert [each.num_images for each in faces] == [20, 20]
    assert [record.getMessage() for record in caplog.records] == [
        f"{rec}: 2 other files ignored: {rec}/readme.md, {rec}/001/notes.txt"
    ]


def test_a_folder_that_does_not_fit_is_refused(tmp_path):
    root = tmp_path / "set"
    write_folders(root, draw())
    (root / "006").mkdir()
    with pytest.raises(ValueError, match="set/006 contains no images: remove it"):
        open_images(root)
    (root / "006" / "a.heic").touch()
    with pytest.raises(ValueError, match="set/006 contains no images that can be read, only a.heic"):
        open_images(root)
    (root / "006" / "inner").mkdir()
    with pytest.raises(ValueError, match="006/inner is a folder"):
        open_images(root)


# Shards ----------------------------------------------------------------------------------------------


def test_the_index_of_a_shard_is_written_once_and_again_when_the_shard_changes(tmp_path, monkeypatch):
    shard, image = str(tmp_path / "a.tar"), draw()[0][0]
    write_shard(shard, {"x/1.jpg": image, "x/1.cls": b"7\n", "README": b"text"})
    first = open_shard(shard)
    assert first[:, 1:].tolist() == [[len(image), 7]]
    monkeypatch.setattr("partial_fc.data.sources.shards.index_shard", None)
    np.testing.assert_array_equal(open_shard(shard), first)
    monkeypatch.undo()
    with open(shard + ".index", "r+b") as file:  # a damaged index is not used
        file.seek(48)
        file.write(b"\1")
    np.testing.assert_array_equal(open_shard(shard), first)
    write_shard(shard, {"1.jpg": image, "1.cls": b"8", "2.cls": b"1", "2.jpg": image})
    assert open_shard(shard)[:, 2].tolist() == [8, 1]


def test_samples_of_shards_may_have_several_labels(tmp_path, monkeypatch):
    several = {"1.jpg": b"image", "1.cls": b"7 3\n2", "2.jpg": b"other", "2.cls": b" 5\n"}
    write_shard(tmp_path / "a.tar", several)
    write_shard(tmp_path / "b.tar", {"1.jpg": b"image", "1.cls": b"4"})
    expected = [[7, 3, 2], [5, -1, -1], [4, -1, -1]]
    for _ in range(2):  # without and with the indexes
        images = open_images(tmp_path)
        assert images.labels(np.arange(3)).tolist() == expected and images.num_identities == 8
        assert images.read(1, expected[1]) == b"other" and len(images.digest) == 16
        monkeypatch.setattr("partial_fc.data.sources.shards.index_shard", None)
    assert open_shard(str(tmp_path / "b.tar")).shape == (1, 3)  # as before there were several


@pytest.mark.parametrize(
    "files, message",
    [
        ({"1.jpg": b"image"}, "sample 1 has no .cls"),
        ({"1.jpg": b"image", "1.cls": b"1 -1"}, "1.cls is b'1 -1', expected a class label, or several"),
        ({"1.jpg": b"image", "1.cls": b" \n"}, "1.cls is b'', expected a class label"),
        ({"1.jpg": b"image", "1.cls": b"1 " * 2**14}, "1.cls is b'1 1 .*, expected a class label"),
        ({"a/1.cls": b"3"}, "sample a/1 has no image"),
        ({"1.jpg": b"image", "1.cls": b"three"}, "1.cls is b'three'"),
        ({"1.jpg": b"image", "1.cls": b"9" * 19}, "1.cls is b'9+'"),
        ({"notes": b"text"}, "contains no samples"),
        ([("1.jpg", b"image"), ("1.cls", b"0"), ("2.cls", b"0"), ("1.jpg", b"other")], "1.jpg is a second image"),
        ({"22.jpg": b"image", "22.cls": b"0", "22.05.jpg": b"image", "22.05.cls": b"0"}, "22.05 .* first dot"),
        ({"1.jpg": b"image", "1.cls": b"0", "2.jpg": None, "2.cls": None}, "2.jpg is a link"),
        ({"1.jpg": b"image", "1.cls": None}, "1.cls is a link"),
    ],
)
def test_a_shard_without_complete_samples_is_refused(files, message, tmp_path):
    write_shard(tmp_path / "a.tar", files)
    with pytest.raises(ValueError, match=f"a.tar.*{message}"):
        open_images(tmp_path / "a.tar")


def test_other_files_of_a_sample_are_ignored(tmp_path):
    write_shard(
        tmp_path / "a.tar", {"1.jpg": b"image", "1.seg.png": b"mask", "1.seg.json": b"{}", "1.cls": b"3", "x": b""}
    )
    images = open_images(tmp_path / "a.tar")
    assert images.num_images == 1 and images.read(0, 3) == b"image"


def test_joined_shards_have_the_images_of_all(tmp_path):
    """`cat` keeps the end-of-archive zeros between them."""
    for number in range(3):
        write_shard(tmp_path / f"{number}", {"a/1.jpg": b"%d" % number * 600, "a/1.cls": b"%d" % number})
    joined = b"".join((tmp_path / f"{number}").read_bytes() for number in range(3))
    (tmp_path / "joined.tar").write_bytes(joined)
    images = open_images(tmp_path / "joined.tar")
    assert [images.read(n, n) for n in range(3)] == [b"%d" % n * 600 for n in range(3)]
    assert images.labels([0, 1, 2]).tolist() == [0, 1, 2]
    (tmp_path / "other.tar").write_bytes(joined + b"text" * 200)
    with pytest.raises(ValueError, match=f"other.tar ends at offset {len(joined)}, but is followed by data"):
        open_images(tmp_path / "other.tar")


@pytest.mark.parametrize("name", ["a.tgz", "a.tar.zst", "a.tar"])
def test_a_compressed_shard_is_refused(name, tmp_path):
    write_shard(tmp_path / "plain", {"1.jpg": b"image", "1.cls": b"0"})
    (tmp_path / name).write_bytes(gzip.compress((tmp_path / "plain").read_bytes()))
    (tmp_path / "b.tar").write_bytes((tmp_path / "plain").read_bytes())
    (tmp_path / "plain").unlink()
    for rec in (tmp_path / name, tmp_path, tmp_path / f"*{name[1:]}"):
        with pytest.raises(ValueError, match=f"{name} is compressed"):
            open_images(rec)


@pytest.mark.parametrize("keep", [0, 100, 1024, 4000, -10240])
def test_a_truncated_shard_is_refused(keep, tmp_path):
    write_shards(tmp_path, draw())
    shard = tmp_path / "faces-000.tar"
    shard.write_bytes(shard.read_bytes()[:keep])
    with pytest.raises(ValueError, match="faces-000.tar is .*again"):
        open_images(tmp_path)


def test_a_shard_that_shrinks_while_it_is_read_has_bad_images(tmp_path):
    faces = face_batches(write_shards(tmp_path, draw()), 20, SIZE)
    os.truncate(tmp_path / "faces-000.tar", 700)
    with pytest.raises(ValueError, match="faces-000.tar: .* is truncated"):
        faces.batch(0, 0)


def test_shards_beyond_the_limit_of_open_files_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr("partial_fc.data.sources.shards.HELD_OPEN", 1)
    for number in range(40):
        write_shard(tmp_path / f"{number:02}.tar", {"a.jpg": b"image %d" % number, "a.cls": b"%d" % number})
    with few_open_files(20):
        for _ in range(2):  # without and with the indexes
            images = open_images(tmp_path)
            assert [images.read(place, place) for place in range(40)] == [b"image %d" % place for place in range(40)]
            assert images.labels(np.arange(40)).tolist() == list(range(40))
            assert images.describe(39) == f"{tmp_path}/39.tar: a.jpg at offset 512"


@pytest.mark.parametrize("other", ["validation-0", "data-test", "faces_VAL_000", "dev"])
def test_files_of_another_split_are_not_trained_on(other, tmp_path):
    for name in ("train-0.tar", "latest-0.TAR", f"{other}.tar"):
        write_shard(tmp_path / name, {"a.jpg": b"image", "a.cls": b"0"})
    with pytest.raises(ValueError, match=f"{other}.tar is named like a held-out split"):
        open_images(tmp_path)
    os.remove(tmp_path / f"{other}.tar")
    assert open_images(tmp_path).num_images == 2 and open_images(tmp_path / "l*.TAR").num_images == 1


def test_a_pattern_names_every_shard(tmp_path):
    for number in (8, 9, 10):
        (tmp_path / f"a-{number:02}.tar").touch()
    (tmp_path / "._a-08.tar").touch()  # macOS writes one for each file
    names = [str(tmp_path / f"a-{number:02}.tar") for number in (8, 9, 10)]
    assert expand_shards(str(tmp_path / "a-{08..10}.tar"), ".tar") == expand_shards(str(tmp_path), ".tar") == names
    assert expand_shards(str(tmp_path / "a*.tar"), ".tar") == names
    for number in (9, 10):
        (tmp_path / f"{number}.tar").touch()
    assert expand_shards(str(tmp_path / "{9..10}.tar"), ".tar") == [
        str(tmp_path / name) for name in ("9.tar", "10.tar")
    ]
    with pytest.raises(FileNotFoundError, match="a-11.tar does not exist"):
        expand_shards(str(tmp_path / "a-{08..11}.tar"), ".tar")
    with pytest.raises(ValueError, match=r"a-\{10\.\.08\}.tar names no files"):
        expand_shards(str(tmp_path / "a-{10..08}.tar"), ".tar")


# Datasets of a user ----------------------------------------------------------------------------------


def write_module(folder, text):
    (folder / "set").mkdir()
    (folder / "set" / "own_set.py").write_text(text)


@pytest.mark.parametrize(
    "text, message",
    [
        ("import nowhere", "own_set cannot be imported"),
        ("class Own:\n  def __iter__(self): yield 1", r"<class 'own_set.Own'>: name a class with __len__\(\)"),
        ("def Own(): return iter([])", "a list_iterator without __len__ and __getitem__"),
        ("def Own(): return []", "which has no items"),
        ("def Own(): raise OSError('no disk')", "failed: OSError: no disk"),
        ("Own = [(1, 2, 3)]", r"own_set:Own\[0\] cannot be read \(ValueError"),
        ("Own = [(b'', 'a')]", "its label is of type str, expected an integer"),
        ("Own = [dict(image=b'', label=0)]", "dict with the keys image, label, .* pair"),
        ("Own = [(b'', -1)]", "item 0 has the label -1"),
    ],
)
def test_a_dataset_that_does_not_fit_is_refused(text, message, in_path):
    write_module(in_path, text)
    with pytest.raises(ValueError, match=message):
        open_images("own_set:Own")


def test_items_of_a_dataset_are_images_in_several_forms_without_targets(in_path):
    write_module(
        in_path, "import numpy as np\npixels = np.full((4, 4, 3), 7, np.uint8)\nOwn = [(pixels, 0), (b'encoded', 3)]"
    )
    images = open_images("own_set:Own")
    assert images.labels([0, 1]).tolist() == [0, 3] and images.num_identities == 4
    pixels = images.read(0, 0)
    pixels[:] = 0  # an augmentation may do this
    assert (images.read(0, 0) == 7).all() and images.read(1, 3) == b"encoded"
    with pytest.raises(ValueError, match=r"own_set:Own\[0\] has 4x4 pixels instead of 4x5; set resize=True"):
        face_batches("own_set:Own", 1, (4, 5)).batch(0, 0)
    assert images.digest == DatasetItems([(np.zeros(2), 0), (np.ones(2), 3)]).digest


@pytest.mark.parametrize("shape, dtype", [((4, 3, 5), "uint8"), ((3, 4, 5), "float32"), ((3, 5), "uint8")])
def test_what_is_no_image_of_a_dataset_is_refused(shape, dtype):
    with pytest.raises(ValueError, match=f"is {dtype} of shape"):
        as_image(np.zeros(shape, dtype))
    assert as_image(np.zeros((3, 4, 5), np.uint8)).shape == (4, 5, 3)


@pytest.mark.parametrize("label, fits", [(2**31 - 1, True), (2**31, False)])
def test_the_largest_label_of_a_class(label, fits, in_path):
    write_shard(in_path / "a.tar", {"1.jpg": b"image", "1.cls": b"0", "2.jpg": b"last", "2.cls": b"%d" % label})
    write_module(in_path, f"Own = [(b'image', 0), (b'last', {label})]")
    items = [(np.zeros(2), 0), (np.ones(2), label)]
    for opened, what in ((open_images, in_path / "a.tar"), (open_images, "own_set:Own"), (DatasetItems, items)):
        if not fits:
            with pytest.raises(ValueError, match=f"has the label {label}: number the classes from 0"):
                opened(what)
        elif opened is DatasetItems:
            assert opened(what).num_classes == label + 1 and opened(what).read(np.array([1]), 0).labels == [label]
        else:
            images = opened(what)
            assert images.labels([0, 1]).tolist() == [0, label] and images.num_identities == label + 1
            assert images.read(1, label) == b"last"


# What `rec` names --------------------------------------------------------------------------------------


def test_names_are_no_paths():
    assert is_name("hf:org/faces") and is_name("mine.data:train_set")
    assert not is_name("/sets/mine") and not is_name("./a:b") and not is_name("sets/a:b")


def test_a_folder_is_what_is_in_it(tmp_path):
    write_folders(tmp_path / "photos", draw())
    assert set_path(str(tmp_path / "photos")) == str(tmp_path / "photos")
    assert set_path(str(tmp_path)) == str(tmp_path)
    (tmp_path / "photos" / "state.json").touch()  # a saved data set has two such files
    assert form_of(str(tmp_path / "photos")) == FOLDER
    (tmp_path / "photos" / "dataset_info.json").touch()
    assert form_of(str(tmp_path / "photos")) == SAVED
    (tmp_path / "photos" / "train.rec").touch()
    assert set_path(str(tmp_path / "photos")) == str(tmp_path / "photos" / "train.rec")
    assert set_path(str(tmp_path / "none")) == str(tmp_path / "none" / "train.rec")


FILES = {
    "a.tar": "a.tar",
    "b.tar.gz": "b.tar.gz",
    "c.parquet": "c.parquet",
    "d.rec": "d.rec",
    "001/1.JPG": "images in 001",
}


@pytest.mark.parametrize("two", [pair for pair in combinations(FILES, 2) if pair != ("a.tar", "b.tar.gz")], ids=str)
def test_a_folder_of_several_forms_is_refused(two, tmp_path):
    for name in (*two, ".hidden/1.jpg", "models/run/backbone.onnx", "._x.tar", "x.tar.index", "val.bin"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).touch()
    for find in (set_path, form_of):
        with pytest.raises(
            ValueError, match=rf"holds several sets \({FILES[two[0]]}, {FILES[two[1]]}\): name the files"
        ):
            find(str(tmp_path))
    os.remove(tmp_path / two[1])
    assert form_of(str(tmp_path)) == form_of(str(tmp_path / two[0]))
    (tmp_path / two[1]).touch()
    (tmp_path / "train.rec").touch()
    assert form_of(str(tmp_path)) == RECORDS


def test_columns_follow_the_path(tmp_path):
    (tmp_path / "a.parquet").touch()
    chosen = "#image=my photo,2,label=a#b=c"
    assert split_columns(f"hf:org/faces{chosen}") == ("hf:org/faces", {"image": "my photo,2", "label": "a#b=c"})
    for rec, path in ((f"{tmp_path}/a.parquet", f"{tmp_path}/a.parquet"), (str(tmp_path), str(tmp_path))):
        assert form_of(rec + chosen) == PARQUET and set_path(rec + chosen) == path + chosen
        assert set_folder(rec + chosen) == str(tmp_path) and set_name(rec + chosen) == tmp_path.name
    assert form_of("hf:org/faces#label=a") == HUB
    assert set_name("hf:org/faces#label=a") == set_name("hf:/sets/faces/") == "faces"
    assert split_columns("a#b/image=1") == ("a#b/image=1", {})
    with pytest.raises(ValueError, match="a.tar does not have"):
        form_of(f"{tmp_path}/a.tar#label=a")


def tar_header(name, size, kind=b"0"):
    block = bytearray(tarfile.TarInfo(name).tobuf())
    mark = b"\x80" if size >= 0 else b"\xff"
    block[124:136], block[156:157], block[148:156] = mark + (size % 2**88).to_bytes(11, "big"), kind, b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def pax(data, kind=b"x"):
    return tar_header("p", len(data), kind) + data + bytes(-len(data) % 512)


def record(text):
    length = next(size for size in range(100, 10**6) if len(f"{size} {text}") == size - 1)
    return f"{length} {text}\n".encode()


@pytest.mark.parametrize(
    "content",
    [
        (tar_header("p", 11, b"x") + b"11 path=a.\n".ljust(512, b"\0")) * 2000,
        (tar_header("././@LongLink", 4, b"L") + b"abc".ljust(512, b"\0")) * 2000,
        tar_header("p", 2**60, b"x"),
        *(tar_header("a.jpg", size) + bytes(1024) for size in (2**60, 2**80)),
        tar_header("a.txt", 0) + pax(b"1" * 500_000 + b" path=a\n"),
        (pax(record("comment=" + "1" * 16_000)) + tar_header("a.txt", 0)) * 100,
        (pax(b"2 " * 8_000 + b"a=" + b"b" * 200) + tar_header("a.txt", 0)) * 100,
        tar_header("a.txt", 0) + pax(b"21 hdrcharset=\xff\xff\xff\xff\xff\xff\n"),
        b"".join(pax(record(f"key{number}={'a' * 90}"), b"g") + tar_header("a.txt", 0) for number in range(200)),
        tar_header("a.txt", 0) + tar_header("p", -512, b"x"),
        tar_header("a.txt", 0) + tar_header("a.jpg", 0, b"S"),
        tar_header("a.txt", 0) + pax(b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n") + tar_header("a.jpg", 512),
        tar_header("a.txt", 0) + pax(b"19 GNU.sparse.map=\n") + tar_header("a.jpg", 512),
    ],
    ids=[
        *("pax", "long names", "size of a header", "size", "size above 64 bits", "long length", "digits"),
        *("records in each other", "no UTF-8", "global records", "negative size", "sparse", "sparse 1.0", "sparse 0.1"),
    ],
)
def test_chains_and_sizes_of_a_shard_end_in_one_line(tmp_path, content):
    (tmp_path / "a.tar").write_bytes(content + bytes(1024))
    start = time.process_time()
    with memory_below(64), pytest.raises(ValueError, match="a.tar is no .tar file, or is damaged"):
        index_shard(str(tmp_path / "a.tar"))
    assert time.process_time() - start < 1


def test_names_in_headers_of_a_shard_are_read(tmp_path):
    """Long names in both formats, a global header as `git archive` writes it, and records with long values."""
    for number, form in enumerate((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT)):
        comments = {"comment": "a" * 40} if form == tarfile.PAX_FORMAT else {}
        with tarfile.open(tmp_path / f"{number}.tar", "w", format=form, pax_headers=comments) as tar:
            for ending, content in (("jpg", b"image"), ("cls", b"7")):
                member = tarfile.TarInfo(f"{'ä' * 300}/{'b' * 300}.{ending}")
                member.size, member.pax_headers = len(content), {"SCHILY.xattr.user.a": "\0\n=" * 500}
                tar.addfile(member, io.BytesIO(content))
        assert index_shard(str(tmp_path / f"{number}.tar"))[:, 1:].tolist() == [[5, 7]]


def of_any_kind():
    """Images of identities in other sizes, gray and with alpha."""
    kinds = [{"size": (40, 24)}, {"size": (9, 13)}, {"channels": 1}, {"channels": 4}, {}]
    encode = [cv2.imencode(".png", picture(seed, **kind))[1].tobytes() for seed, kind in enumerate(kinds)]
    return [encode[:3], encode[3:]]


@pytest.mark.parametrize("form", PLAIN)
def test_images_of_any_size_and_color_are_scaled_if_a_setting_says_so(form, in_path):
    identities = of_any_kind()
    rec = PLAIN[form](in_path / "set", identities)
    images, labels = face_batches(rec, 5, SIZE, resize=True).batch(0, 0)
    expected = [resize(decode_any_size(image), SIZE) for of_label in identities for image in of_label]
    np.testing.assert_array_equal(images.transpose(0, 2, 3, 1), expected)
    assert labels.tolist() == [0, 0, 0, 1, 1]
    assert face_batches(rec, 5, (8, 12), resize=True).batch(0, 0).inputs.shape == (5, 3, 8, 12)
    with pytest.raises(ValueError, match="has 40x24 pixels instead of 16x16; set resize=True to scale"):
        face_batches(rec, 5, SIZE).batch(0, 0)


def test_a_gray_image_of_the_right_size_is_refused_without_the_setting(tmp_path):
    rec = write_folders(tmp_path, [[cv2.imencode(".png", picture(channels=1))[1].tobytes()]])
    with pytest.raises(ValueError, match="has 1 channel instead of 3; set resize=True to scale such images and to"):
        face_batches(rec, 1, SIZE).batch(0, 0)
