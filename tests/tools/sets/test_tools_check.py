"""check: all problems of a set are reported, record by record, however damaged the set is."""

import os
import re
import struct
from collections import Counter
from functools import partial

import cv2
import numpy as np
import pytest

from command_line import exit_code, start
from face_sets import overwrite, rewrite, write_records
from partial_fc.data.face_records import FaceRecords, write_face_set
from partial_fc.data.recordio.format import MAGIC_BYTES, RecordHeader, pack
from partial_fc.data.synthetic.draw import encode_face
from partial_fc_tools.sets.check import SetCheck

SIZES = (3, 4, 2, 5)


def write_sound_set(root):
    """4 identities, 14 images: keys 1 to 14, identity records 15 to 18; returns the path of its train.rec."""
    write_face_set(root, [[encode_face(3, person, image) for image in range(n)] for person, n in enumerate(SIZES)])
    return os.path.join(root, "train.rec")


def problems(rec, fast=False, workers=1):
    """Returns (texts, parts) of the problems."""
    found = list(SetCheck(rec, fast, workers).problems())
    return [problem.text for problem in found], Counter(problem.part for problem in found)


def lines_of(rec):
    with open(rec[:-3] + "idx") as file:
        return file.read().splitlines()


def write_lines(rec, lines, end="\n"):
    with open(rec[:-3] + "idx", "w") as file:
        file.write("\n".join(lines) + end)


def offsets_of(rec):
    return {int(key): int(offset) for key, offset in (line.split("\t") for line in lines_of(rec))}


@pytest.fixture
def rec(tmp_path):
    """A set to damage."""
    return write_sound_set(str(tmp_path / "set"))


@pytest.mark.parametrize("fast, workers", [(False, 2), (True, 1)])
def test_a_valid_set(rec, fast, workers):
    check = SetCheck(rec, fast, workers)
    assert list(check.problems()) == []
    summary = check.summary(Counter())
    assert "19 records, 14 images of 4 identities" in summary and summary.endswith("no problems")


def test_damaged_images_are_named(rec):
    at = offsets_of(rec)
    overwrite(rec, at[2] + 32, b"\0" * 40)  # the start of the JPEG
    length = struct.unpack("<I", open(rec, "rb").read()[at[5] + 4 : at[5] + 8])[0]
    overwrite(rec, at[5] + 8 + length - 2, b"\0\0")  # its end
    overwrite(rec, at[9] + 32 + 700, bytes(range(256)) * 4)  # its inside: decodes, with garbage in the image
    texts, parts = problems(rec)
    assert parts == {"image": 3} and problems(rec, fast=True) == ([], {})
    for text, key, what in zip(texts, (2, 5, 9), ("decoded", "truncated", "Corrupt JPEG|decoded")):
        assert re.match(rf"key {key} at offset {at[key]}: .*({what})", text)


def test_several_chunks_and_processes_report_the_same(tmp_path):
    face = cv2.imencode(".jpg", np.zeros((16, 16, 3), np.uint8))[1].tobytes()
    write_face_set(tmp_path, [[face] * 300] * 2, (16, 16))
    rec = str(tmp_path / "train.rec")
    at = offsets_of(rec)
    for key in (1, 256, 257, 512, 600):  # at the ends of the chunks of 256 records
        overwrite(rec, at[key], b"\0")
    alone, _ = problems(rec)
    assert [int(re.match(r"key (\d+) at", text)[1]) for text in alone] == [1, 256, 257, 512, 600]
    assert problems(rec, workers=2)[0] == problems(rec, fast=True, workers=2)[0] == alone


def test_wrong_sizes_channels_and_no_image_at_all(rec):
    grey = cv2.imencode(".jpg", np.zeros((112, 112), np.uint8))[1].tobytes()
    small = cv2.imencode(".png", np.zeros((112, 96, 3), np.uint8))[1].tobytes()
    alpha = cv2.imencode(".png", np.zeros((112, 112, 4), np.uint8))[1].tobytes()
    other = {3: grey, 4: small, 6: alpha, 8: b""}
    rewrite(rec, lambda key, header, image: (key, header, other.get(key, image)))
    texts, parts = problems(rec)
    assert parts == {"image": 4}
    whats = {3: "has 1 channel", 4: "has 112x96 pixels", 6: "has 4 channels", 8: "contains no image"}
    for text, (key, what) in zip(texts, whats.items()):
        assert text.startswith(f"key {key} at offset {offsets_of(rec)[key]}: {what}")


@pytest.mark.parametrize("label", [float("nan"), 1.5, -1.0, 3.0, 99.0])
def test_labels_of_another_identity(rec, label):
    rewrite(rec, lambda key, header, image: (key, header._replace(label=label) if key == 5 else header, image))
    (text,), parts = problems(rec, fast=True)
    assert parts == {"image": 1}
    assert text.startswith(f"key 5 at offset {offsets_of(rec)[5]}: has label {label:g} in its header")


def test_a_truncated_rec(rec):
    at = offsets_of(rec)
    os.truncate(rec, at[12] + 100)
    texts, parts = problems(rec)
    assert texts[:7] == [
        f"key {key} at offset {at[key]}: the file ends at {at[12] + 100}" for key in [*range(13, 19), 0]
    ]
    (last,) = texts[7:]
    assert last.startswith(f"key 12 at offset {at[12]}: extends to offset {at[13]}")
    assert "truncated" in SetCheck(rec).summary(parts)
    os.truncate(rec, at[12])  # between two records, and the last image before is damaged
    overwrite(rec, at[11] + 32, b"\0" * 40)
    texts, parts = problems(rec)
    assert "cannot be decoded" in texts[-1] and parts == {"file": 8, "image": 1}


def test_a_broken_record_in_the_middle(rec):
    at = offsets_of(rec)
    overwrite(rec, at[7], b"\1\2\3\4")
    overwrite(rec, at[10] + 4, struct.pack("<I", 8))  # shorter than a header; what follows is no record
    texts, parts = problems(rec)
    assert texts[0].startswith(f"key 7 at offset {at[7]}: does not start with the magic word")
    assert texts[1].startswith(f"key 10 at offset {at[10]}: has no image header")
    assert re.match(rf"offset {at[10] + 16} to {at[11]}: \d+ bytes .* not a record", texts[2])
    assert parts == {"file": 2, "index": 1}


def test_garbage_and_cut_index_lines(rec):
    lines, at = lines_of(rec), offsets_of(rec)
    write_lines(rec, [*lines[:3], "garbage", "5", "", "6\tx7", "-7\t8", "9\t" + "9" * 30, *lines[3:]])
    texts, parts = problems(rec)
    assert parts == {"index": 6} and texts[0].startswith("train.idx line 4: b'garbage' is not")
    assert [int(re.match(r"train.idx line (\d+)", text)[1]) for text in texts] == [4, 5, 6, 7, 8, 9]
    write_lines(rec, [*lines[:16], f"17\t{str(at[17])[:-2]}"], end="")
    texts, _ = problems(rec)
    assert any(text.startswith(f"key 17 at offset {str(at[17])[:-2]}") for text in texts)
    assert f"offset {at[17]} to {os.path.getsize(rec)}: 3 records that the index does not list" in texts


def test_as_many_invalid_lines_are_listed_as_the_limit(rec, monkeypatch):
    """Also if they are in different chunks of the text."""
    lines = lines_of(rec)
    write_lines(rec, [*lines[:3], "a", *lines[3:10], "b", *lines[10:], "last"])
    for chunk in (20, 1 << 18):
        monkeypatch.setattr("partial_fc.data.recordio.index.CHUNK", chunk)
        monkeypatch.setattr("partial_fc.data.recordio.index.MAX_INVALID", 3)
        numbers = [int(re.match(r"train.idx line (\d+)", text)[1]) for text in problems(rec)[0]]
        assert numbers == [4, 12, len(lines) + 3]
        monkeypatch.setattr("partial_fc.data.recordio.index.MAX_INVALID", 2)
        with pytest.raises(ValueError, match="train.idx is not a RecordIO index"):
            problems(rec)


def test_invalid_offsets(rec):
    lines, at = lines_of(rec), offsets_of(rec)
    lines[3], lines[5] = f"4\t{10**15}", f"6\t{at[6] + 1}"
    write_lines(rec, lines)
    texts, _ = problems(rec)
    assert texts[0] == f"key 4 at offset {10**15}: the file ends at {os.path.getsize(rec)}"
    assert texts[1].startswith(f"key 6 at offset {at[6] + 1}: the offset is not a multiple of 4")
    assert f"offset {at[4]} to {at[5]}: 1 record that the index does not list" in texts and len(texts) == 4


def test_swapped_and_repeated_rows(rec):
    lines, at = lines_of(rec), offsets_of(rec)
    write_lines(rec, [*lines[:4], lines[5], lines[4], *lines[6:]])  # whole lines
    assert problems(rec)[0] == [f"key 5 at offset {at[5]}: is listed after key 6 at offset {at[6]}: rows are swapped"]
    write_lines(rec, [*lines[:4], f"5\t{at[6]}", f"6\t{at[5]}", *lines[6:]])  # offsets, within one identity
    assert FaceRecords(rec).num_images == sum(SIZES)  # the reader cannot know
    assert problems(rec)[0] == [f"key 6 at offset {at[5]}: is listed after key 5 at offset {at[6]}: rows are swapped"]
    repeated = f"key 5 at offset {at[5]}: the key is repeated, first at offset {at[5]}"
    write_lines(rec, [*lines[:5], lines[4], f"6\t{at[5]}", *lines[6:]])
    texts, parts = problems(rec)
    assert texts[:2] == [repeated, f"key 6 at offset {at[5]}: the key 5 has the same offset"]
    assert f"offset {at[6]} to {at[7]}: 1 record that the index does not list" in texts
    assert parts["index"] >= 3 and not parts["file"]
    write_lines(rec, [*lines[:4], f"5\t{at[2]}", *lines[4:6], f"5\t{at[9]}", *lines[6:]])
    repeated = [text for text in problems(rec)[0] if "the key is repeated" in text]
    assert len(repeated) == 2 and all(text.endswith(f"first at offset {at[2]}") for text in repeated)


def test_all_images_are_checked_despite_problems_of_the_index(rec):
    lines, at = lines_of(rec), offsets_of(rec)
    lines[1], lines[9] = f"2\t{at[10]}", f"10\t{at[2]}"  # images of two identities
    write_lines(rec, lines)
    _, parts = problems(rec)
    assert parts["index"] and parts["image"]  # their labels
    advice = SetCheck(rec).summary(parts)
    assert "copy both again" in advice and "skip_bad_images" not in advice


def test_an_index_in_another_order_is_no_problem(rec):
    lines = lines_of(rec)
    write_lines(rec, [lines[index] for index in np.random.default_rng(0).permutation(len(lines))])
    assert problems(rec)[0] == []
    write_lines(rec, [lines[-1], *lines[:-1]])
    assert lines[-1].startswith("0\t") and problems(rec)[0] == []  # key 0 may be anywhere


def test_records_the_index_does_not_list(rec):
    size = os.path.getsize(rec)
    extra = pack(RecordHeader(0, 0.0, 99, 0), b"more")
    with open(rec, "ab") as file:
        file.write((MAGIC_BYTES + struct.pack("<I", len(extra)) + extra) * 2 + b"tail")
    (text,), _ = problems(rec)
    assert text.startswith(f"offset {size} to {size + 76}: 2 records that the index does not list, then 4 bytes")


def test_the_first_inconsistent_identity_record(rec):
    def change(key, header, image):
        ranges = {15: (1, 5), 17: (8, 90)}  # instead of [1, 4) and [8, 10)
        if key in ranges:
            header = RecordHeader(2, np.array(ranges[key], np.float32), *ranges[key])
        return key, header, image

    rewrite(rec, change)
    (text,), parts = problems(rec)
    assert "identity 2 has the images 8 to 89" in text
    assert parts == {"identity": 1} and "copy the set again" in SetCheck(rec).summary(parts)


@pytest.mark.parametrize(
    "text, what", [("5,112,112", "5 identities"), ("4,96,112", "96x112 pixels"), ("4 classes", "classes,height,width")]
)
def test_a_property_that_does_not_match(rec, text, what):
    with open(os.path.join(os.path.dirname(rec), "property"), "w") as file:
        file.write(text)
    (found,), parts = problems(rec)
    assert what in found and parts == {"identity": 1}


@pytest.mark.parametrize("fast", [False, True])
def test_a_set_of_im2rec(tmp_path, fast):
    for last, expected in ((1.0, 0), (0.5, 1)):
        labels = [2.0, np.array([0.0, 7.0, 7.0]), last]
        rec = write_records(
            tmp_path, {key: (label, key, 0, encode_face(4, key, 0)) for key, label in enumerate(labels)}
        )
        texts, _ = problems(rec, fast)
        assert len(texts) == expected and all("has label 0.5" in text for text in texts)


def test_bad_images_of_several_labels(tmp_path):
    """Neither a property file nor an image shows the size."""
    labels = {0: 0.0, 1: np.array([1.0, 5.0]), 2: np.array([2.0, 5.0, 5.0])}
    bad = {key: (label, key, 0, b"no image" if key < 2 else b"") for key, label in labels.items()}
    texts, parts = problems(write_records(tmp_path, bad))
    what = [text.rpartition(": ")[2] for text in texts]
    assert what == ["cannot be decoded (8 bytes)"] * 2 + ["contains no image"] and parts == {"image": 3}


def test_the_command(rec):
    run = partial(start, "sets", "check")
    for key in (4, 10, 14, 1):  # images whose size is read first; libpng and libjpeg print warnings
        overwrite(rec, offsets_of(rec)[key] + 32 + 700, bytes(range(256)) * 4)
    bad = run(rec)
    assert (bad.returncode, bad.stderr, bad.stdout.count("\n")) == (1, "", 5)
    assert bad.stdout.startswith(f"key 1 at offset {offsets_of(rec)[1]}: ")
    assert "4 problems. What to do: single images are bad" in bad.stdout
    assert exit_code("sets", "check", rec, "--fast") == 0
    write_sound_set(os.path.dirname(rec))
    assert exit_code("sets", "check", os.path.dirname(rec)) == 0
