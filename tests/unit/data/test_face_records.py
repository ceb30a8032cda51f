"""insightface's layout, and labels and ranges that float32 cannot hold."""

import os

import numpy as np
import pytest

from face_sets import overwrite, rewrite, write_records
from partial_fc.data.face_records import FaceRecords, write_face_set
from partial_fc.data.recordio.format import RecordHeader

BIG = 1 << 24  # 16,777,216; float32 has no 16,777,217
SET = [[b"a0", b"a1"], [b"b0"], [b"c0", b"c1", b"c2"]]


def labels(faces):
    return faces.labels(np.arange(faces.num_images))


@pytest.fixture
def rec(tmp_path):
    """The train.rec of SET."""
    write_face_set(tmp_path, SET)
    return str(tmp_path / "train.rec")


def a_range(start, end, *integers):
    return np.array([start, end], np.float32), *(integers or (0, 0)), b""


def original_set(ranges, first):
    """Records as insightface writes them: labels in float32 only. ranges: [start, end) of each identity."""
    records = {0: a_range(first, first + len(ranges))}
    for label, (start, end) in enumerate(ranges):
        for key in range(start, end):
            records[key] = (float(label), key, 0, b"image%d" % key)
        records[first + label] = a_range(start, end, first + label, 0)
    return records


def test_a_set_is_read_as_written(tmp_path):
    assert write_face_set(str(tmp_path), SET, (112, 96)) == (6, 3)
    faces = FaceRecords(tmp_path / "train.rec")
    assert (faces.num_images, faces.num_identities, faces.image_size) == (6, 3, (112, 96))
    assert faces.keys(np.arange(6)).tolist() == [1, 2, 3, 4, 5, 6] and labels(faces).tolist() == [0, 0, 1, 2, 2, 2]
    assert faces.keys([0]).dtype == labels(faces).dtype == np.int64
    assert [faces.read_image(p) for p in (0, 2, 5)] == [(b"a0", 0), (b"b0", 1), (b"c2", 2)]
    assert (tmp_path / "property").read_text() == "3,112,96\n"


@pytest.mark.parametrize("count", [2, 3, 4, 6, 7])
def test_headers_are_read_in_parts(tmp_path, monkeypatch, count):
    """Headers of identity records, or of images in a set without them; in sets above 65,536 records."""
    monkeypatch.setattr("partial_fc.data.recordio.reader.CHUNK", 3)
    write_face_set(tmp_path / "set", [[b"%d" % person] * (1 + person) for person in range(count)])
    faces = FaceRecords(tmp_path / "set" / "train.rec")
    assert labels(faces).tolist() == np.repeat(np.arange(count), np.arange(1, count + 1)).tolist()
    assert faces.read_image(faces.num_images - 1) == (b"%d" % (count - 1), count - 1)
    images = {key: (float(count - key), key, 0, b"x") for key in range(count)}
    assert labels(FaceRecords(write_records(tmp_path / "plain", images))).tolist() == list(range(count, 0, -1))


def test_an_identity_without_images_is_refused_and_no_file_written(tmp_path):
    with pytest.raises(ValueError, match="identity 1 has no images"):
        write_face_set(str(tmp_path), [[b"a"], []])
    assert os.listdir(tmp_path) == []


def test_16777217_is_kept_in_key_ranges(rec):
    """A small set with the keys of the end of a huge set."""
    shift = BIG - 2  # identity 1 is the range [16,777,217, 16,777,218)

    def moved(key, header, image):
        if header.flag == 2:
            start, end = header.id + shift, header.id2 + shift
            header = RecordHeader(2, np.array([start, end], np.float32), start, end)
        return key + shift if key else 0, header, image

    rewrite(rec, moved)
    faces = FaceRecords(rec)
    assert faces.keys(np.arange(6)).tolist() == list(range(BIG - 1, BIG + 5))
    assert labels(faces).tolist() == [0, 0, 1, 2, 2, 2]
    assert faces.read_image(2) == (b"b0", 1)


@pytest.mark.parametrize("shift", [BIG - 20, BIG - 8, BIG - 3, BIG, BIG + 1, 2 * BIG - 5, 4 * BIG + 3])
def test_ranges_rounded_to_float32_are_recovered_from_the_images_labels(tmp_path, shift):
    """In an original set beyond 2^24 images (Glint360K), ranges are floats only, and neighboring starts are equal."""
    sizes = [3, 1, 1, 2, 1, 5, 1, 1, 1, 4, 0]
    ends = np.cumsum([1, *sizes]) + shift
    ranges = list(zip(ends[:-1].tolist(), ends[1:].tolist()))
    faces = FaceRecords(write_records(tmp_path, original_set(ranges, int(ends[-1]))))
    assert labels(faces).tolist() == np.repeat(np.arange(len(sizes)), sizes).tolist()
    assert faces.num_identities == len(sizes)
    assert faces.read_image(4) == (b"image%d" % ranges[2][0], 2)


def test_an_identity_without_images_has_none_of_the_runs(tmp_path):
    faces = FaceRecords(write_records(tmp_path, original_set([(1, 1), (1, 3), (3, 3), (3, 5), (5, 5)], 5)))
    assert (labels(faces).tolist(), faces.runs.labels.tolist(), faces.num_identities) == ([1, 1, 3, 3], [1, 3], 5)


def test_opening_reads_no_image_header(rec):
    for record in range(6):  # keeps the magic words, which opening checks
        overwrite(rec, 36 * record + 4, b"\0" * 32)
    faces = FaceRecords(rec)
    assert labels(faces).tolist() == [0, 0, 1, 2, 2, 2]
    with pytest.raises(ValueError, match="train.rec: image with key 2 at offset 36 is damaged: .* at least 24"):
        faces.read_image(1)


@pytest.mark.parametrize("stated", [0.0, 2.0, -1.0, 1.5, float("nan"), float("inf"), 3.0])
def test_a_header_label_other_than_the_identitys_is_refused(tmp_path, stated):
    """This also detects swapped lines in the index."""
    records = original_set([(1, 3), (3, 5)], 5)
    faces = FaceRecords(write_records(tmp_path, {**records, 4: (np.array([stated, 7.0]), 4, 0, b"image")}))
    assert faces.read_image(2) == (b"image3", 1)
    with pytest.raises(ValueError, match=r"train.rec: image with key 4 at offset \d+ has the label .* of identity 1"):
        faces.read_image(3)


def test_a_set_without_identity_records(tmp_path):
    """In sets of MXNet's im2rec, every record is an image with one or several labels in its header."""
    records = {0: (1.0, 0, 0, b"x"), 1: (np.array([3.0, 9.0, 9.0]), 1, 0, b"y"), 2: (0.0, 2, 0, b"")}
    faces = FaceRecords(write_records(tmp_path, records))
    assert labels(faces).tolist() == [1, 3, 0] and faces.num_identities == 4
    assert faces.image_size is None and faces.ranges == "none"
    assert faces.read_image(1) == (b"y", 3)


def test_a_first_image_with_two_labels_is_not_a_range(tmp_path):
    """im2rec with a label width of 2."""
    rec = write_records(tmp_path, {key: (np.array([key % 2, 9.0]), key, 0, b"image") for key in range(3)})
    assert labels(FaceRecords(rec)).tolist() == [0, 1, 0]


@pytest.mark.parametrize("label", [float(BIG), 1.5, -1.0, float("nan")])
def test_a_header_label_that_is_not_an_exact_integer_is_refused(tmp_path, label):
    rec = write_records(tmp_path, {0: (1.0, 0, 0, b"x"), 1: (label, 1, 0, b"y")})
    with pytest.raises(ValueError, match=r"key 1 at offset \d+ has label"):
        FaceRecords(rec)


@pytest.mark.parametrize(
    "key, what",
    [
        (5, "identity 2 has the images 4 to 6, but the index lists 2 of 3"),
        (8, "according to record 0 identities have the keys 7 to 10"),
    ],
)
def test_an_index_with_missing_lines_is_refused(rec, tmp_path, key, what):
    lines = (tmp_path / "train.idx").read_text().splitlines(keepends=True)
    (tmp_path / "train.idx").write_text("".join(line for line in lines if not line.startswith(f"{key}\t")))
    with pytest.raises(ValueError, match=what):
        FaceRecords(rec)


TWO, IMAGE = [(1, 3), (3, 5)], (0.0, 3, 0, b"image")
NO_RANGE = "train.rec: key 0 at offset 0 should contain a range of keys"


@pytest.mark.parametrize(
    "ranges, first, others, what",
    [
        ([(1, 3), (4, 6)], 6, {3: IMAGE}, "image key 3 belongs to no identity"),
        ([(1, 4), (3, 6)], 6, {}, "image key 3 belongs to two identities"),
        (TWO, 7, {5: IMAGE, 6: IMAGE}, "image key 5 belongs to no identity"),
        ([*TWO, (5, 5)], 5, {7: a_range(4, 3)}, r"key 7 at offset \d+ should contain a range .* contains 4 to 3"),
        ([*TWO, (5, 5)], 5, {7: a_range(BIG, BIG, BIG + 1, BIG)}, "identity 2 has the images 16777217 to 16777215"),
        *[(TWO, 5, {0: a_range(*limits)}, NO_RANGE) for limits in ((np.nan, 7), (0, 7), (5, np.inf), (5, -1))],
        (TWO, 5, {0: (5.0, 0, 0, b"")}, "key 0 at offset 0 should be the range of the identity records"),
        (TWO, 5, {6: IMAGE}, "key 6 should be an identity record"),
        (
            [(BIG + 1, BIG + 6), (BIG + 6, BIG + 11)],
            BIG + 11,
            {key: IMAGE for key in range(BIG + 1, BIG + 11)}
            | {BIG + 11: a_range(BIG + 1, BIG + 7), BIG + 12: a_range(BIG + 8, BIG + 12)},
            "rounded to float32 and the images' labels do not determine them",
        ),
    ],
)
def test_ranges_that_do_not_fit_are_refused(tmp_path, ranges, first, others, what):
    rec = write_records(tmp_path, {**original_set(ranges, first), **others})
    with pytest.raises(ValueError, match=what):
        FaceRecords(rec)


def test_a_bad_property_and_a_wrong_file_name(rec, tmp_path):
    with pytest.raises(ValueError, match="is not the name of a RecordIO file"):
        FaceRecords(str(tmp_path))
    for text in ("3 classes", "3,0,112", "3,112,-1"):
        (tmp_path / "property").write_text(f"{text}\n")
        with pytest.raises(ValueError, match=f"property contains '{text}', expected 'classes,height,width'"):
            FaceRecords(rec)
