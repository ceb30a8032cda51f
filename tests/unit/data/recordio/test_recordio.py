"""RecordIO files, their index, and errors of damaged files."""

import os
import struct

import numpy as np
import pytest

from partial_fc.data.recordio import format as record_format
from partial_fc.data.recordio import reader as record_reader
from partial_fc.data.recordio.format import MAGIC_BYTES, RecordHeader, RecordWriter, pack, unpack
from partial_fc.data.recordio.reader import MAX_GUESS, RecordReader

PAYLOADS = {
    0: b"",
    3: b"abc",
    7: MAGIC_BYTES,
    8: MAGIC_BYTES * 3 + b"x",
    10: b"head" + MAGIC_BYTES + b"middle--" + MAGIC_BYTES,
    9: b"x" + MAGIC_BYTES + b"tail",  # not at a multiple of 4, so not split; keys are not in order
    2**40: bytes(range(256)) * 3,
}


@pytest.fixture
def paths(tmp_path):
    return str(tmp_path / "a.rec"), str(tmp_path / "a.idx")


def write(paths, payloads):
    with RecordWriter(*paths) as writer:
        for key, payload in payloads.items():
            writer.write(key, payload)


def test_every_payload_is_read_as_written(paths):
    write(paths, PAYLOADS)
    reader = RecordReader(*paths)
    keys = reader.index.keys_at(np.arange(len(reader)))
    assert keys.dtype == np.int64 and keys.tolist() == sorted(PAYLOADS)
    assert {key: reader.read(key) for key in keys.tolist()} == PAYLOADS
    with pytest.raises(KeyError, match="no key 4"):
        reader.read(4)
    reader.close()


def test_the_digest_of_many_records_has_every_key_and_offset(paths, monkeypatch):
    """Even where the digest is updated in several parts."""
    monkeypatch.setattr(record_reader, "DIGESTED", 3)
    keys, digests = list(range(10, 80, 10)), []
    for changed in range(8):  # of 7 records, so the last round changes nothing
        for moved in (0, 1):
            sizes = np.full(7, 4) + 4 * (np.arange(7) == 0) + moved * (4 * (np.arange(7) == changed))
            payloads = [bytes(size) for size in sizes]
            write(paths, {key + (number == changed) * (1 - moved): payloads[number] for number, key in enumerate(keys)})
            digests.append(RecordReader(*paths).digest())
    assert len(set(digests)) == 15 and digests[-2] == digests[-1]
    monkeypatch.undo()
    before = RecordReader(*paths).digest()
    with open(paths[0], "r+b") as file:
        file.seek(8)
        file.write(b"x")
    assert RecordReader(*paths).digest() != before


@pytest.mark.parametrize("size", [MAX_GUESS - 8, MAX_GUESS - 7, MAX_GUESS, 3 * MAX_GUESS + 1])
def test_large_payloads_are_read_as_written(paths, size):
    payloads = {1: bytes([1]) * size, 2: b"next", 3: bytes([3]) * size}
    write(paths, payloads)
    reader = RecordReader(*paths)
    for key in (3, 1, 2, 3):
        assert reader.read(key) == payloads[key]


@pytest.mark.parametrize("more", [0, 1])
def test_a_record_of_as_many_parts_as_are_read(paths, more, monkeypatch):
    """The magic words between the parts belong to the payload."""
    monkeypatch.setattr("partial_fc.data.recordio.scanner.MAX_PIECES", 5)
    payload = MAGIC_BYTES * (4 + more) + b"last"
    write(paths, {1: payload, 2: b"next"})
    if more:
        with pytest.raises(ValueError, match="key 1 at offset 0 has more than 5 parts"):
            RecordReader(*paths)
    else:
        assert [RecordReader(*paths).read(key) for key in (1, 2)] == [payload, b"next"]


def test_a_part_that_is_too_long_is_not_written(paths, monkeypatch):
    """The limit of the format is 512 MiB."""
    monkeypatch.setattr(record_format, "MAX_PART", 7)
    write(paths, {1: b"7 bytes", 2: b"4444" + MAGIC_BYTES + b"longest"})
    with pytest.raises(ValueError, match="record 2 has 8 bytes, RecordIO allows at most 7"):
        write(paths, {1: b"7 bytes", 2: b"8 bytes!"})
    assert RecordReader(*paths).read(2) == b"4444" + MAGIC_BYTES + b"longest"  # nothing was written


def test_header_with_one_label_and_with_several():
    header, payload = unpack(pack(RecordHeader(9, 3.5, 2**63, 7), b"image"))
    assert header == (0, 3.5, 2**63, 7) and payload == b"image"
    header, payload = unpack(pack(RecordHeader(0, np.array([1, 2.5, 3]), 1, 2), b"image"))
    assert header.flag == 3 and header.label.dtype == np.float32 and header.label.tolist() == [1, 2.5, 3]
    assert (header.id, header.id2, payload) == (1, 2, b"image")
    with pytest.raises(ValueError, match="at least 24"):
        unpack(b"short")
    with pytest.raises(ValueError, match="header has 3 labels"):
        unpack(struct.pack("<IfQQ", 3, 0, 0, 0) + b"12345678")


def test_missing_and_empty_files_are_named(paths):
    with pytest.raises(FileNotFoundError, match="a.rec .* does not exist"):
        RecordReader(*paths)
    write(paths, PAYLOADS)
    os.remove(paths[1])
    with pytest.raises(FileNotFoundError, match="a.idx .* does not exist"):
        RecordReader(*paths)
    open(paths[1], "w").close()
    with pytest.raises(ValueError, match="a.idx .* is empty"):
        RecordReader(*paths)


@pytest.mark.parametrize(
    "text, what",
    [
        ("0\t0\n3\t99996\n", "key 3 is at offset 99996"),
        ("0\t0\n3\t12\n", "key 3 at offset 12 does not start with the magic word"),
        ("0\t0\n0\t8\n", "key 0 is repeated"),
        ("0\t8\n3\t8\n", "keys 0 and 3 have the same offset 8"),
        ("0\t0\n", "a.idx ends with key 0, whose record ends at byte 8"),
        ("0\t0\n3\t8\n4\t32\n", "a.rec: key 4 at offset 32 is inside a record"),
        ("0\t0\n3\n", "line 2 is not"),
        ("0\t-8\n", "line 1 is not"),
    ],
)
def test_an_index_that_does_not_match_is_refused(paths, text, what):
    write(paths, {0: b"", 3: b"abc", 4: b"four" + MAGIC_BYTES + b"rest"})
    with open(paths[1], "w") as file:
        file.write(text)
    with pytest.raises(ValueError, match=what):
        RecordReader(*paths)


def test_an_index_that_matches_only_at_its_ends_is_refused(paths):
    """The index of another set of the same size is detected at one of the SAMPLES, without reading all records."""
    write(paths, {key: b"x" * 100 for key in range(1000)})
    offsets = [0, *(108 * key + 12 for key in range(1, 999)), 108 * 999]
    with open(paths[1], "w") as file:
        file.write("".join(f"{key}\t{offset}\n" for key, offset in enumerate(offsets)))
    with pytest.raises(ValueError, match="does not start with the magic word"):
        RecordReader(*paths)


def test_a_record_without_its_last_part_is_named(paths):
    write(paths, {0: b"head" + MAGIC_BYTES + b"tail", 1: b"next"})
    with open(paths[0], "r+b") as file:
        file.seek(12 + 4)  # the second part
        file.write(struct.pack("<I", 4))  # now claims to be a complete record
    with pytest.raises(ValueError, match="key 0 at offset 0 has no last part"):
        RecordReader(*paths)


def test_a_file_that_becomes_unreadable_is_named(paths):
    write(paths, PAYLOADS)
    reader = RecordReader(*paths)
    reader.close()
    with pytest.raises(OSError, match=r"a.rec: key 3 at offset 8 cannot be read \(Bad file descriptor\): check"):
        reader.read(3)
