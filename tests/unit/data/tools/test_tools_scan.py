"""walk_records: a .rec from front to back, without its index."""

import os
import struct

import pytest

from partial_fc.data.recordio.format import MAGIC_BYTES, RecordWriter
from partial_fc.data.recordio.scanner import BrokenRecordError, locate_record, read_payload, walk_records

PAYLOADS = [
    b"",
    b"abc",
    MAGIC_BYTES,
    b"head" + MAGIC_BYTES + b"tail!",
    b"x" + MAGIC_BYTES,
    MAGIC_BYTES * 3,
    bytes(range(256)),
]


@pytest.fixture
def rec(tmp_path):
    path = str(tmp_path / "a.rec")
    with RecordWriter(path, path[:-3] + "idx") as writer:
        for key, payload in enumerate(PAYLOADS):
            writer.write(key, payload)
    return path


def offsets_of(rec):
    return [int(line.split("\t")[1]) for line in open(rec[:-3] + "idx")]


def scan_to_the_end(rec):
    """(what was read, the error or None)"""
    read = []
    with open(rec, "rb") as file:
        fd = file.fileno()
        try:
            for extent in walk_records(fd, 0, os.path.getsize(rec)):
                read.append((extent.offset, read_payload(fd, extent)))
        except BrokenRecordError as error:
            return read, error
    return read, None


def test_every_record_with_its_offset(rec):
    assert scan_to_the_end(rec) == (list(zip(offsets_of(rec), PAYLOADS)), None)


@pytest.mark.parametrize("cut", [1, 2, 100, 260])
def test_a_truncated_file(rec, cut):
    os.truncate(rec, os.path.getsize(rec) - cut)
    read, error = scan_to_the_end(rec)
    assert read == list(zip(offsets_of(rec), PAYLOADS))[:-1]
    assert error.offset == offsets_of(rec)[-1]
    assert "truncated" in str(error)


def test_bytes_that_are_not_a_record(rec):
    at = offsets_of(rec)
    with open(rec, "r+b") as file:
        file.seek(at[4])
        file.write(b"\0\0\0\0")
    read, error = scan_to_the_end(rec)
    assert read == list(zip(at, PAYLOADS))[:4]
    assert error.offset == at[4] and "does not start with the magic word 0xced7230a" in str(error)


def test_a_record_without_its_last_part(rec):
    at = offsets_of(rec)
    with open(rec, "r+b") as file:  # the second part of "head" + magic + "tail!"
        file.seek(at[3] + 12 + 4)
        file.write(struct.pack("<I", 5))  # says now that it is whole
    read, error = scan_to_the_end(rec)
    assert len(read) == 3 and error.offset == at[3] and "has no last part" in str(error)


def test_the_inside_of_a_record_is_not_a_record(rec):
    with open(rec, "rb") as file, pytest.raises(BrokenRecordError, match="is inside a record"):
        locate_record(file.fileno(), offsets_of(rec)[3] + 12, os.path.getsize(rec))


def test_an_empty_file_has_no_records(tmp_path):
    (tmp_path / "a.rec").touch()
    assert scan_to_the_end(tmp_path / "a.rec") == ([], None)
