"""Damaged sets raise errors that name the file, and take little memory."""

import numpy as np
import pytest

from damage import EXTREME, check_damaged, damaged
from partial_fc.data.face_records import FaceRecords, write_face_set
from partial_fc.data.recordio import index as record_index


def summed(content, rng):
    """A damaged shared index with a valid checksum."""
    words = np.frombuffer(content, "<i8").copy()
    words[rng.randrange(3, len(words))] = rng.choice([*EXTREME, rng.randrange(300)])
    if rng.random() < 0.1:
        words[3], words = 0, words[:7]  # no records
    with np.errstate(over="ignore"):
        words[6] = words[4] + words[7:].sum()
    return words.tobytes()


@pytest.mark.parametrize("ending", ["rec", "idx", "idx.offsets"])
def test_data_sets(ending, tmp_path, monkeypatch):
    rec = tmp_path / "train.rec"
    write_face_set(tmp_path, [[b"image" * 9, b"other"], [b"third"]])

    def read(path):
        monkeypatch.setattr(record_index, "write_words", lambda *_: None)
        records = FaceRecords(rec)
        try:
            for position in range(min(records.num_images, 100)):
                records.read_image(position)
        finally:
            records.close()

    if ending == "idx.offsets":
        monkeypatch.setattr(record_index, "SHARE_FROM", 1)
        FaceRecords(rec).close()
    path = tmp_path / f"train.{ending}"
    read(path)
    check_damaged(path, path.read_bytes(), read, draw=summed if ending == "idx.offsets" else damaged)


def test_an_index_of_empty_lines_takes_little_memory(tmp_path):
    write_face_set(tmp_path, [[b"image"]])
    path = tmp_path / "train.idx"
    check_damaged(
        path, b"\n" * (8 << 20), lambda path: FaceRecords(tmp_path / "train.rec"), draw=lambda data, _: data, seconds=0
    )
