"""insightface's layout, and labels and ranges that float32 cannot hold."""

import os

import numpy as np
import pytest

from partial_fc.data.face_records import FaceRecords, write_face_set
from partial_fc.data.identity_ranges import runs_of_ranges
from partial_fc.data.recordio.format import RecordHeader, RecordWriter, pack, unpack
from partial_fc.data.recordio.reader import RecordReader

BIG = 1 << 24  # 16,777,216; float32 has no 16,777,217
SET = [[b"a0", b"a1"], [b"b0"], [b"c0", b"c1", b"c2"]]


def rec(root):
    return os.path.join(str(root), "train.rec")


def write_records(root, records):
    """records: {key: (label or labels, id, id2, image)}."""
    with RecordWriter(rec(root), os.path.join(str(root), "train.idx")) as writer:
        for key, (label, ident, ident2, image) in records.items():
            writer.write(key, pack(RecordHeader(0, label, ident, ident2), image))


def labels(faces):
    return faces.labels(np.arange(faces.num_images))


def keys(reader):
    return reader.index.keys_at(np.arange(len(reader))).tolist()


def original_set(ranges, first):
    """Records as insightface writes them: labels in float32 only. ranges: [start, end) of each identity."""
    records = {0: (np.array([first, first + len(ranges)], np.float32), 0, 0, b"")}
    for label, (start, end) in enumerate(ranges):
        for key in range(start, end):
            records[key] = (float(label), key, 0, b"image%d" % key)
        records[first + label] = (np.array([start, end], np.float32), first + label, 0, b"")
    return records


def rename_keys(root, shift):
    """Let a small set look like the end of a huge one: image keys move up by `shift`, as does all that names them."""
    reader = RecordReader(rec(root), os.path.join(str(root), "train.idx"))
    records = {}
    for key in keys(reader):
        header, image = unpack(reader.read(key))
        if header.flag == 2:
            start, end = header.id + shift, header.id2 + shift
            header = RecordHeader(2, np.array([start, end], np.float32), start, end)
        records[key + shift if key else 0] = (header.label, header.id, header.id2, image)
    reader.close()
    write_records(root, records)


def test_a_set_is_read_as_written(tmp_path):
    assert write_face_set(str(tmp_path), SET, (112, 96)) == (6, 3)
    faces = FaceRecords(rec(tmp_path))
    assert (faces.num_images, faces.num_identities, faces.image_size) == (6, 3, (112, 96))
    assert faces.keys(np.arange(6)).tolist() == [1, 2, 3, 4, 5, 6] and labels(faces).tolist() == [0, 0, 1, 2, 2, 2]
    assert faces.keys([0]).dtype == labels(faces).dtype == np.int64
    assert [faces.read_image(p) for p in (0, 2, 5)] == [(b"a0", 0), (b"b0", 1), (b"c2", 2)]
    assert (tmp_path / "property").read_text() == "3,112,96\n"


def test_the_layout_is_that_of_the_original(tmp_path):
    write_face_set(str(tmp_path), SET)
    reader = RecordReader(rec(tmp_path), str(tmp_path / "train.idx"))
    headers = {key: unpack(reader.read(key))[0] for key in keys(reader)}
    assert headers[0].label.tolist() == [7, 10]
    assert [headers[key].label.tolist() for key in (7, 8, 9)] == [[1, 3], [3, 4], [4, 7]]
    assert [headers[key].label for key in range(1, 7)] == [0, 0, 1, 2, 2, 2]


def test_the_same_images_give_the_same_bytes(tmp_path):
    for name in "xy":
        write_face_set(str(tmp_path / name), SET)
    for file in ("train.rec", "train.idx", "property"):
        assert (tmp_path / "x" / file).read_bytes() == (tmp_path / "y" / file).read_bytes()


def test_an_identity_without_images_is_refused_and_no_file_written(tmp_path):
    with pytest.raises(ValueError, match="identity 1 has no images"):
        write_face_set(str(tmp_path), [[b"a"], []])
    assert os.listdir(tmp_path) == []


def test_16777217_is_kept_in_key_ranges(tmp_path):
    write_face_set(str(tmp_path), SET)
    rename_keys(tmp_path, BIG - 2)  # identity 1 is the range [16,777,217, 16,777,218)
    faces = FaceRecords(rec(tmp_path))
    assert faces.keys(np.arange(6)).tolist() == list(range(BIG - 1, BIG + 5))
    assert labels(faces).tolist() == [0, 0, 1, 2, 2, 2]
    assert faces.read_image(2) == (b"b0", 1)


@pytest.mark.parametrize("shift", [BIG - 20, BIG - 8, BIG - 3, BIG, BIG + 1, 2 * BIG - 5, 4 * BIG + 3])
def test_ranges_rounded_to_float32_are_recovered_from_the_images_labels(tmp_path, shift):
    """A set of the original beyond 2^24 images (Glint360K): no integers stored, neighbouring starts collapse."""
    sizes = [3, 1, 1, 2, 1, 5, 1, 1, 1, 4]
    ends = np.cumsum([1, *sizes]) + shift
    ranges = list(zip(ends[:-1].tolist(), ends[1:].tolist()))
    write_records(tmp_path, original_set(ranges, int(ends[-1])))
    faces = FaceRecords(rec(tmp_path))
    assert labels(faces).tolist() == np.repeat(np.arange(len(sizes)), sizes).tolist()
    assert faces.num_identities == len(sizes)
    assert faces.read_image(4) == (b"image%d" % ranges[2][0], 2)


def test_rounded_ranges_that_the_labels_contradict_are_refused(tmp_path):
    records = original_set([(BIG + 1, BIG + 6), (BIG + 6, BIG + 11)], BIG + 11)
    for key in range(BIG + 1, BIG + 11):
        records[key] = (0.0, key, 0, b"image")
    records[BIG + 12] = (np.array([BIG + 8, BIG + 12], np.float32), BIG + 12, 0, b"")
    records[BIG + 11] = (np.array([BIG + 1, BIG + 7], np.float32), BIG + 11, 0, b"")
    write_records(tmp_path, records)
    with pytest.raises(ValueError, match="rounded to float32 and the images' labels do not determine them"):
        FaceRecords(rec(tmp_path))


@pytest.mark.slow
def test_16777217_is_kept_in_labels(tmp_path):
    """A file with 17 M identity records would take 700 MB; this is what makes labels of their ranges."""
    ends = np.arange(1, BIG + 4)
    runs = runs_of_ranges(np.stack([ends[:-1], ends[1:]], axis=1))
    last = runs.labels_at(np.arange(BIG - 1, BIG + 2))
    assert last.dtype == np.int64 and last.tolist() == [BIG - 1, BIG, BIG + 1]


def test_opening_reads_no_image_header(tmp_path):
    write_face_set(str(tmp_path), SET)
    with open(rec(tmp_path), "r+b") as file:
        for record in range(6):  # keep the magic words, by which .rec and .idx are compared
            file.seek(36 * record + 4)
            file.write(b"\0" * 32)
    faces = FaceRecords(rec(tmp_path))
    assert labels(faces).tolist() == [0, 0, 1, 2, 2, 2]
    with pytest.raises(ValueError, match="train.rec: image with key 2 at offset 36 is damaged: .* at least 24"):
        faces.read_image(1)


@pytest.mark.parametrize("stated", [0.0, 2.0, -1.0, 1.5, float("nan"), float("inf"), 3.0])
def test_a_header_label_other_than_the_identitys_is_refused(tmp_path, stated):
    """The same happens if lines of the index are swapped: the image of one key is that of another identity."""
    records = original_set([(1, 3), (3, 5)], 5)
    write_records(tmp_path, {**records, 4: (np.array([stated, 7.0]), 4, 0, b"image")})
    faces = FaceRecords(rec(tmp_path))
    assert faces.read_image(2) == (b"image3", 1)
    with pytest.raises(ValueError, match=r"train.rec: image with key 4 at offset \d+ has the label .* of identity 1"):
        faces.read_image(3)


def test_a_set_without_identity_records(tmp_path):
    """As MXNet's im2rec writes it: every record an image, the label in its header, alone or in a vector."""
    write_records(tmp_path, {0: (1.0, 0, 0, b"x"), 1: (np.array([3.0, 9.0, 9.0]), 1, 0, b"y"), 2: (0.0, 2, 0, b"")})
    faces = FaceRecords(rec(tmp_path))
    assert labels(faces).tolist() == [1, 3, 0] and faces.num_identities == 4
    assert faces.image_size is None and faces.ranges == "none"
    assert faces.read_image(1) == (b"y", 3)


def test_a_first_image_with_two_labels_is_not_a_range(tmp_path):
    """im2rec with a label width of 2."""
    write_records(tmp_path, {key: (np.array([key % 2, 9.0]), key, 0, b"image") for key in range(3)})
    assert labels(FaceRecords(rec(tmp_path))).tolist() == [0, 1, 0]


@pytest.mark.parametrize("label", [float(BIG), 1.5, -1.0, float("nan")])
def test_a_header_label_that_is_not_an_exact_integer_is_refused(tmp_path, label):
    write_records(tmp_path, {0: (1.0, 0, 0, b"x"), 1: (label, 1, 0, b"y")})
    with pytest.raises(ValueError, match=r"key 1 at offset \d+ has label"):
        FaceRecords(rec(tmp_path))


def test_a_label_above_the_number_of_classes_is_refused(tmp_path):
    write_face_set(str(tmp_path), SET)
    faces = FaceRecords(rec(tmp_path))
    faces.check_labels(3)
    with pytest.raises(
        ValueError, match="train.rec: image with key 4 at offset 108 has label 2, but the network has 2"
    ):
        faces.check_labels(2)


def test_an_index_with_missing_lines_is_refused(tmp_path):
    write_face_set(str(tmp_path), SET)
    lines = (tmp_path / "train.idx").read_text().splitlines(keepends=True)
    (tmp_path / "train.idx").write_text("".join(line for line in lines if not line.startswith("5\t")))
    with pytest.raises(ValueError, match="identity 2 has the images 4 to 6, but the index lists 2 of 3"):
        FaceRecords(rec(tmp_path))
    (tmp_path / "train.idx").write_text("".join(line for line in lines if not line.startswith("8\t")))
    with pytest.raises(ValueError, match="according to record 0 identities have the keys 7 to 10"):
        FaceRecords(rec(tmp_path))


def test_images_of_no_identity_or_of_two_are_refused(tmp_path):
    records = original_set([(1, 3), (4, 6)], 6)
    write_records(tmp_path, {**records, 3: (0.0, 3, 0, b"image")})
    with pytest.raises(ValueError, match="image key 3 belongs to no identity"):
        FaceRecords(rec(tmp_path))
    write_records(tmp_path, original_set([(1, 4), (3, 6)], 6))
    with pytest.raises(ValueError, match="image key 3 belongs to two identities"):
        FaceRecords(rec(tmp_path))


def test_images_after_the_last_identity_are_refused(tmp_path):
    records = original_set([(1, 3), (3, 5)], 7)
    write_records(tmp_path, {**records, 5: (1.0, 5, 0, b"image"), 6: (1.0, 6, 0, b"image")})
    with pytest.raises(ValueError, match="image key 5 belongs to no identity"):
        FaceRecords(rec(tmp_path))


def test_a_range_that_ends_before_it_begins_is_refused(tmp_path):
    records = original_set([(1, 4), (4, 7), (7, 7)], 7)
    records[9] = (np.array([6, 3], np.float32), 9, 0, b"")
    write_records(tmp_path, records)
    with pytest.raises(ValueError, match=r"key 9 at offset \d+ should contain a range of keys, but contains 6 to 3"):
        FaceRecords(rec(tmp_path))
    records[9] = (np.array([6, 6], np.float32), 6, 3, b"")
    write_records(tmp_path, {**records, 9: (np.array([BIG, BIG], np.float32), BIG + 1, BIG, b"")})
    with pytest.raises(ValueError, match="identity 2 has the images 16777217 to 16777215"):
        FaceRecords(rec(tmp_path))


@pytest.mark.parametrize("limit", [float("nan"), float("inf"), -1.0, 0.0, 1e30])
@pytest.mark.parametrize("column", [0, 1])
def test_a_record_0_without_valid_keys_is_refused(tmp_path, limit, column):
    records = original_set([(1, 3), (3, 5)], 5)
    records[0][0][column] = limit
    write_records(tmp_path, records)
    with pytest.raises(ValueError, match="train.rec: key 0 at offset 0 should contain a range of keys"):
        FaceRecords(rec(tmp_path))


def test_a_damaged_record_0_is_refused(tmp_path):
    records = original_set([(1, 3), (3, 5)], 5)
    write_records(tmp_path, {**records, 0: (5.0, 0, 0, b"")})
    with pytest.raises(ValueError, match="key 0 at offset 0 should be the range of the identity records"):
        FaceRecords(rec(tmp_path))


def test_an_image_in_place_of_an_identity_record_is_refused(tmp_path):
    records = original_set([(1, 3), (3, 5)], 5)
    write_records(tmp_path, {**records, 6: (1.0, 6, 0, b"image")})
    with pytest.raises(ValueError, match="key 6 should be an identity record"):
        FaceRecords(rec(tmp_path))


def test_a_bad_property_and_a_wrong_file_name(tmp_path):
    write_face_set(str(tmp_path), SET)
    with pytest.raises(ValueError, match="is not the name of a RecordIO file"):
        FaceRecords(str(tmp_path))
    (tmp_path / "property").write_text("3 classes\n")
    with pytest.raises(ValueError, match="property contains '3 classes', expected 'classes,height,width'"):
        FaceRecords(rec(tmp_path))
