"""partial-fc sets clean on a small set with known errors."""

import csv
import hashlib
import os
import shutil

import cv2
import numpy as np
import pytest
from onnx import helper, numpy_helper

from command_line import exit_code
from partial_fc.data.face_records import FaceRecords, write_face_set
from partial_fc.data.names import read_names, write_names
from partial_fc.data.pairs_bin import write_pairs
from partial_fc_tools.cleaning import embeddings
from partial_fc_tools.cleaning.stored import working_folder
from patterns import photo_of
from tiny_onnx import TinyModel

PEOPLE, IMAGES = 12, 8
RANDOM = np.random.default_rng(0)
PATTERNS = RANDOM.integers(0, 256, (PEOPLE, 14, 14, 3))


def photo(person):
    """A JPEG of 112x112: the pattern of a person, and noise."""
    return photo_of(PATTERNS[person], 50, RANDOM, 112)


def jpeg(image, quality):
    return cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, quality])[1].tobytes()


def again(encoded):
    return jpeg(cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR), 70)


@pytest.fixture(scope="module")
def errors(tmp_path_factory):
    """A folder with a model, a set, and a test set with person 11.

    Class 1 has an image of person 4, class 3 one that cannot be decoded, class 5 an image twice, and person 7 is in the
    classes 7 and 12. The test set has a copy of an image of person 2, too.
    """
    folder = tmp_path_factory.mktemp("clean")
    TinyModel(features=64).write(folder / "model.onnx")
    photos = [[photo(person) for _ in range(IMAGES)] for person in range(PEOPLE)]
    photos[1][2] = photo(4)
    photos[3][0] = b"\xff\xd8 no image \xff\xd9"
    photos[5].append(again(photos[5][3]))
    photos.append([photo(7) for _ in range(IMAGES - 2)])
    write_face_set(folder / "set", photos)
    write_names(folder / "set", [f"name {label}" for label in range(PEOPLE + 1)])
    test = [photo(11), photo(11), again(photos[2][5])]
    test.append(jpeg(RANDOM.integers(0, 256, (112, 112, 3)).astype(np.uint8), 90))
    write_pairs(folder / "test.bin", test, [True, False])
    return folder


def clean(folder, out, *options):
    return exit_code("sets", "clean", folder / "set", out, "--model", folder / "model.onnx", "--workers", 1, *options)


@pytest.fixture(scope="module")
def cleaned(errors, tmp_path_factory):
    """The set, cleaned without a test set; its working folder is beside it."""
    out = tmp_path_factory.mktemp("cleaned") / "out"
    assert clean(errors, out) == 0
    return out


def lines_of(out):
    with open(out / "changes.csv", newline="") as file:
        return list(csv.DictReader(file))


def changes_of(out):
    return {(row["key"], row["class"], row["new_class"], row["reason"]) for row in lines_of(out)}


def content(folder):
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in sorted(os.listdir(folder))}


def test_end_to_end(errors, tmp_path, capsys):
    before, out = content(errors / "set"), tmp_path / "out"
    assert clean(errors, out, "--against", errors / "test.bin") == 0, capsys.readouterr().err
    key = [1 + IMAGES * person + (person > 5) for person in range(PEOPLE + 1)]
    merged = {(str(key[12] + image), "12", "7", "split class") for image in range(IMAGES - 2)}
    in_test = {(str(key[label] + image), str(label), "", "test person") for label in (2, 11) for image in range(IMAGES)}
    in_test ^= {(str(key[2] + 5), "2", "", reason) for reason in ("test person", "test image")}
    assert changes_of(out) == merged | in_test | {
        (str(key[1] + 2), "1", "4", "wrong label"),
        (str(key[3]), "3", "", "unreadable"),
        (str(key[5] + IMAGES), "5", "", "near-duplicate"),
    }
    assert capsys.readouterr().out.splitlines()[:-1] == [
        "wrong labels: 1 images, of which 0 are left out",
        "split classes: 2 classes merged into 1",
        "near-duplicates: 1 images left out",
        "in test sets: 2 persons with 15 images left out; 1 near-duplicate of test images",
        "unreadable: 1 images left out",
    ]
    rows = {row["reason"]: row for row in lines_of(out) if row["reason"] != "test person"}
    other = {"wrong label": "class 4", "split class": "class 7", "near-duplicate": f"key {key[5] + 3}"}
    named = {**other, "test image": "test.bin 2", "unreadable": ""}
    assert {reason: row["other"] for reason, row in rows.items()} == named
    assert all(float(rows[reason]["near"]) > float(rows[reason]["own"]) > -1 for reason in other)
    old, new = FaceRecords(errors / "set" / "train.rec"), FaceRecords(out / "train.rec")
    kept = [label for label in range(11) if label != 2]
    assert (out / "class_map.txt").read_text().split() == list(map(str, kept))
    assert read_names(out / "train.rec", 10) == [f"name {label}" for label in kept]
    assert new.runs.images_per_label()[0].tolist() == [8, 7, 7, 9, 8, 8, 14, 8, 8, 8]
    moved = old.read_image(key[1] + 1)[0]
    assert moved in [new.read_image(position)[0] for position in np.flatnonzero(new.labels(np.arange(85)) == 3)]
    page = (out / "report.html").read_text()
    assert page.count("<img") > 20 and "http" not in page.replace("http-equiv", "").replace("http://www.w3.org", "")
    assert content(errors / "set") == before
    assert exit_code("sets", "check", out) == 0


def test_an_image_without_an_embedding_is_left_out_and_listed(errors, tmp_path, capsys, monkeypatch):
    """Also the last image, and the first ones, which are searched before all embeddings are read."""
    monkeypatch.setattr("partial_fc_tools.cleaning.stored.SEARCHED", 2)
    photos = [[photo(person) for _ in range(IMAGES)] for person in range(PEOPLE)]
    for person, number in (black := [(0, 0), (0, 1), (2, 3), (PEOPLE - 1, IMAGES - 1)]):
        photos[person][number] = jpeg(np.zeros((112, 112, 3), np.uint8), 95)
    write_face_set(tmp_path / "set", photos)
    model = TinyModel(features=64)
    model.initializers.append(numpy_helper.from_array(np.float32(0.9), "offset"))
    model.replace_last(  # NaN for a black image, whose mean is -1
        helper.make_node("ReduceMean", ["pixels"], ["mean_pixel"], axes=[1, 2, 3]),
        helper.make_node("Flatten", ["mean_pixel"], ["column"]),
        helper.make_node("Add", ["column", "offset"], ["light"]),
        helper.make_node("Sqrt", ["light"], ["root"]),
        helper.make_node("Div", ["root", "root"], ["one"]),
        helper.make_node("Mul", ["double", "one"], ["embedding"]),
    )
    model.write(tmp_path / "model.onnx")
    assert clean(tmp_path, tmp_path / "out", "--wrong", "keep", "--split", "keep", "--duplicates", "keep") == 0
    expected = {(str(1 + person * IMAGES + number), str(person), "", "unreadable") for person, number in black}
    assert changes_of(tmp_path / "out") == expected
    model.initializers[4].raw_data = np.float32(np.nan).tobytes()  # a factor of all embeddings
    model.write(tmp_path / "model.onnx")
    embeddings.opened_model.cache_clear()
    assert clean(tmp_path, tmp_path / "none") == 2
    assert "computes no embedding of" in capsys.readouterr().err


def test_the_images_of_several_test_sets_are_named(errors, tmp_path):
    """A person with a split class leaves with both classes."""
    records = FaceRecords(errors / "set" / "train.rec")
    first = {9: 1 + 9 * IMAGES, 10: 1 + 10 * IMAGES, 2: 2 * IMAGES}  # after the additional image of class 5
    copies = {label: [again(records.read_image(first[label] + number)[0]) for number in (1, 5)] for label in first}
    records.close()
    write_pairs(tmp_path / "a.bin", copies[9], [True])
    write_pairs(tmp_path / "b.bin", copies[10] + copies[2], [True, True])
    write_pairs(tmp_path / "c.bin", [photo(7), photo(7)], [True])
    assert clean(errors, tmp_path / "out", "--against", *(tmp_path / f"{name}.bin" for name in "abc")) == 0
    found = {}
    for row in lines_of(tmp_path / "out"):
        if row["reason"].startswith("test"):
            found.setdefault(row["class"], set()).add(row["other"])
    expected = {"9": {"a.bin 0", "a.bin 1"}, "10": {"b.bin 0", "b.bin 1"}, "2": {"b.bin 2", "b.bin 3"}}
    expected |= {label: {"c.bin 0", "c.bin 1"} for label in ("7", "12")}
    assert found.keys() == expected.keys() and all(names <= expected[label] for label, names in found.items())


def test_a_second_run_takes_the_embeddings_and_other_limits(errors, cleaned, tmp_path, monkeypatch):
    monkeypatch.setattr(embeddings, "embed_part", lambda *_: pytest.fail("embedded again"))
    options = ["--wrong", "remove", "--split", "keep", "--duplicates", "keep"]
    assert clean(errors, tmp_path / "two", "--work", f"{cleaned}.work", *options) == 0
    assert {row[2:] for row in changes_of(tmp_path / "two")} == {("", "wrong label"), ("", "unreadable")}
    reasons = {row[3] for row in changes_of(cleaned)}
    assert reasons == {"wrong label", "unreadable", "split class", "near-duplicate"}


def other_weights(folder):
    """Only in the model's second file."""
    path = folder / "model.onnx"
    graph, times = path.read_bytes(), path.stat()
    TinyModel(features=64, seed=8).write_in_two(path)
    path.write_bytes(graph)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def another_set(folder):
    """Images of the same sizes: two images of different classes change places."""
    records = FaceRecords(folder / "set" / "train.rec")
    people = [[] for _ in range(PEOPLE + 1)]
    for position in range(records.num_images):
        image, label = records.read_image(position)
        people[label].append(image)
    records.close()
    people[0][0], people[2][0] = people[2][0], people[0][0]
    write_face_set(folder / "set", people)


def another_test(folder):
    write_pairs(folder / "test.bin", [photo(9), photo(9)], [True])


def test_what_has_changed_since_the_last_run_is_embedded_again(errors, tmp_path):
    shutil.copytree(errors, tmp_path / "own")
    own, before = tmp_path / "own", ""
    TinyModel(features=64).write_in_two(own / "model.onnx")
    for change in (lambda folder: None, other_weights, another_set, another_test, None):
        options = ["--against", own / "test.bin", *["--no-flip"] * (change is None)]
        if change:
            change(own)
        embeddings.opened_model.cache_clear()  # as in a new process
        for name, work in (("again", "work"), ("fresh", "new")):
            shutil.rmtree(tmp_path / "new", ignore_errors=True)
            assert clean(own, tmp_path / name, "--work", tmp_path / work, "--force", *options) == 0
        assert content(tmp_path / "again") == content(tmp_path / "fresh")
        assert content(tmp_path / "again")["changes.csv"] != before
        before = content(tmp_path / "again")["changes.csv"]


def test_a_large_set_is_compared_by_samples(errors, cleaned, tmp_path, monkeypatch):
    """Samples of its images and of altered copies give the same changes."""
    monkeypatch.setattr("partial_fc_tools.cleaning.centers.SAMPLED", 50)
    monkeypatch.setattr("partial_fc_tools.cleaning.copies.SAMPLED", 20)
    assert clean(errors, tmp_path / "some") == 0
    copies = np.load(*(tmp_path / "some.work").glob("copies-*.npy"))
    assert len(copies) == 20 and copies.any(axis=1).all()
    assert changes_of(tmp_path / "some") == changes_of(cleaned)


def test_an_interrupted_run_leaves_embeddings_alone_and_goes_on_there(errors, cleaned, tmp_path, monkeypatch):
    monkeypatch.setattr(embeddings, "PART", 16)
    original, parts = embeddings.embed_part, []

    def gone(*_):
        raise OSError("the disk is gone")

    def interrupted(*arguments):
        parts.append(arguments[-1])
        return gone() if len(parts) == 4 else original(*arguments)

    monkeypatch.setattr(embeddings, "embed_part", interrupted)
    assert clean(errors, tmp_path / "out", "--work", tmp_path / "work") == 2
    kept = [os.path.splitext(name)[1] for name in sorted(os.listdir(tmp_path / "work"))]
    assert os.listdir(tmp_path) == ["work"] and kept == [".json", ".npy"]
    assert clean(errors, tmp_path / "out", "--work", tmp_path / "work") == 0
    assert parts[4] == parts[3] and content(tmp_path / "out") == content(cleaned)
    for path in (tmp_path / "work").glob("*.npy"):
        path.unlink()
    with monkeypatch.context() as patch:  # ends after the first rows, before the file that counts them
        patch.setattr(embeddings, "replace_file", gone)
        assert clean(errors, tmp_path / "out", "--work", tmp_path / "work", "--force") == 2
    assert clean(errors, tmp_path / "out", "--work", tmp_path / "work", "--force") == 0
    assert content(tmp_path / "out") == content(cleaned)


def test_processes_change_nothing(errors, cleaned, tmp_path, monkeypatch):
    monkeypatch.setattr(embeddings, "PART", 32)
    monkeypatch.setattr("partial_fc_tools.cleaning.nearest.MAX_SIDE", 8)
    assert clean(errors, tmp_path / "two", "--workers", 2, "--memory-mb", 1) == 0
    assert content(tmp_path / "two") == content(cleaned)


@pytest.mark.parametrize(
    "factor, refused",
    [(0, True), (0.001, True), (0.02, False), (None, True)],
    ids=["constant", "collapsed", "cone", "random labels"],
)
def test_a_model_that_does_not_separate_the_classes_is_refused(errors, tmp_path, capsys, factor, refused):
    """To a collapsed model, all images of a class but one would be near-duplicates."""
    model, folder = TinyModel(features=64), errors / "set"
    if factor is None:
        folder = tmp_path / "set"
        write_face_set(folder, [[photo(RANDOM.integers(PEOPLE)) for _ in range(IMAGES)] for _ in range(PEOPLE)])
    else:
        model.initializers += [numpy_helper.from_array(np.float32(value), str(value)) for value in (factor, 1)]
        model.replace_last(
            helper.make_node("Mul", ["double", str(factor)], ["small"]),
            helper.make_node("Add", ["small", "1"], ["embedding"]),
        )
    model.write(tmp_path / "model.onnx")
    command = ["sets", "clean", folder, tmp_path / "out", "--model", tmp_path / "model.onnx", "--workers", 1]
    assert exit_code(*command) == (2 if refused else 0)
    printed = capsys.readouterr()
    if refused:
        assert f"{tmp_path}/model.onnx cannot clean this set" in printed.err and printed.err.count("\n") == 1
        assert not (tmp_path / "out").exists()
    else:
        assert "out: 101 images of 12 identities" in printed.out


def test_what_cannot_be_cleaned_is_refused_and_leaves_nothing(errors, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small = jpeg(np.zeros((64, 64, 3), np.uint8), 90)
    write_pairs("small.bin", [small, small], [True])
    TinyModel(size=(64, 64)).write(tmp_path / "small.onnx")
    with working_folder("used"):
        for words, message in (
            ([errors / "set", "--force"], "name another folder"),
            (["out", "--work", "used"], "used is being changed"),
            (["out", "--against", "missing.bin"], "missing.bin"),
            (["out", "--model", "missing.onnx"], "missing.onnx"),
            (["out", "--model", "small.onnx"], "112x112"),
            (["out", "--against", "small.bin", "--work", "kept"], "small.bin: image 0"),
        ):
            assert clean(errors, *words) == 2 and message in capsys.readouterr().err
    assert sorted(os.listdir()) == ["kept", "small.bin", "small.onnx"]
