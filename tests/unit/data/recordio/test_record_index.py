"""The index as arrays: any keys, any order, shared between processes, and never trusted when it is stale."""

import os
import stat
import subprocess
import sys

import numpy as np
import pytest

from partial_fc.data.recordio import index as record_index
from partial_fc.data.recordio.index import ENDING, RecordIndex, open_index, parse_index

SIZE = 1 << 20
TABLE = {1: 0, 2: 8, 3: 16}


@pytest.fixture
def idx(tmp_path):
    return str(tmp_path / "train.idx")


def write(idx, table, end="\n"):
    with open(idx, "w") as file:
        file.write("\n".join(f"{key}\t{offset}" for key, offset in table.items()) + end)


def content(index):
    keys = index.keys_at(np.arange(len(index)))
    return dict(zip(keys.tolist(), index.offsets.tolist()))


@pytest.mark.parametrize("end", ["\n", ""])
@pytest.mark.parametrize(
    "keys",
    [[0, 1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 0], [3, 0, 2, 1], [0], [1], [5], [0, 1, 3], [2, 9, 2**40, 7], [0, 2, 4, 6]],
)
def test_keys_of_any_kind(idx, keys, end):
    table = {key: 8 * place for place, key in enumerate(keys)}
    write(idx, table, end)
    index = parse_index(idx)
    assert content(index) == table and index.offsets.dtype == np.int64
    assert index.search(sorted(keys)).tolist() == list(range(len(keys)))
    assert index.search([-5, 2**60]).tolist() == [0, len(keys)]


def test_chunks_join(idx, monkeypatch):
    table = {key: 4 * key for key in range(1, 3000)}
    write(idx, {**table, 0: 4 * 3000})
    whole = content(parse_index(idx))
    monkeypatch.setattr(record_index, "CHUNK", 100)
    assert content(parse_index(idx)) == whole
    open_index(idx, SIZE)
    with open(idx, "a") as file:
        file.write("3001\tx\n")
    with pytest.raises(ValueError, match="line 3001 is not"):
        parse_index(idx)


def test_offsets_are_checked(idx):
    offsets = np.arange(0, 400, 4)
    for row in (0, 1, 50, 99):
        wrong = offsets.copy()
        wrong[row] = wrong[row - 1]
        with pytest.raises(ValueError, match="have the same offset"):
            record_index.check_offsets(idx, RecordIndex(wrong), SIZE)
        for offset in (SIZE, 4 * row + 2):
            wrong[row] = offset
            with pytest.raises(ValueError, match=f"key {row} is at offset {offset}"):
                record_index.check_offsets(idx, RecordIndex(wrong), SIZE)
    for order in (offsets, np.roll(offsets, 1), offsets[::-1].copy()):  # record 0 may be the last in the file
        record_index.check_offsets(idx, RecordIndex(order), SIZE)


@pytest.fixture
def shared(idx, monkeypatch):
    """An index whose offsets are shared, although it has only three lines."""
    monkeypatch.setattr(record_index, "SHARE_FROM", 3)
    write(idx, TABLE)
    assert content(open_index(idx, SIZE)) == TABLE
    return idx + ENDING


@pytest.mark.parametrize("table", [TABLE, {1: 0, 5: 8, 2**40: 16}])
def test_a_large_index_is_shared(idx, shared, monkeypatch, table):
    write(idx, table)
    first = open_index(idx, SIZE)
    assert isinstance(first.offsets, np.memmap) and content(first) == table
    assert stat.S_IMODE(os.stat(shared).st_mode) == stat.S_IMODE(os.stat(idx).st_mode)  # from the umask
    monkeypatch.setattr(record_index, "parse_index", None)  # the second opening must not parse the text
    assert content(open_index(idx, SIZE)) == table
    assert sorted(os.listdir(os.path.dirname(idx))) == ["train.idx", "train.idx" + ENDING]


def test_a_changed_index_is_read_again(idx, shared):
    table = {**TABLE, 3: 20}
    write(idx, table)
    assert content(open_index(idx, SIZE)) == content(open_index(idx, SIZE)) == table


@pytest.mark.parametrize("damaged", [b"", b"something else, of more than 48 bytes: 0123456789", *range(10), "cut"])
def test_a_shared_index_that_is_damaged_is_not_used(idx, shared, damaged):
    """It is empty, has other content, a flipped bit in any word, or is truncated."""
    if damaged == "cut":
        os.truncate(shared, os.path.getsize(shared) - 8)
    elif isinstance(damaged, int):
        words = np.fromfile(shared, "<i8")
        words[damaged] ^= 1 << 2
        words.tofile(shared)
    else:
        with open(shared, "wb") as file:
            file.write(damaged)
    before = open(shared, "rb").read()
    assert content(open_index(idx, SIZE)) == content(open_index(idx, SIZE)) == TABLE
    assert (open(shared, "rb").read() == before) == isinstance(damaged, bytes)  # files of other formats are kept


def test_an_index_that_is_replaced_while_it_is_read_is_not_shared(idx, shared, monkeypatch):
    """If a copy of the .idx ends in between, the old offsets must not get the stamp of the new file."""
    write(idx, {0: 72, 1: 36, 2: 0})
    with monkeypatch.context() as patched:

        def parse_and_replace(path, parse=record_index.parse_index):
            index = parse(path)
            write(idx, {0: 0, 1: 36, 2: 72})
            return index

        patched.setattr(record_index, "parse_index", parse_and_replace)
        assert content(open_index(idx, SIZE)) == {0: 72, 1: 36, 2: 0}
    assert content(open_index(idx, SIZE)) == {0: 0, 1: 36, 2: 72}


def test_a_read_only_folder_is_not_an_error(idx, shared):
    os.remove(shared)
    os.mkdir(shared)  # root can write to a read-only folder, but cannot replace a folder
    assert content(open_index(idx, SIZE)) == TABLE
    assert sorted(os.listdir(os.path.dirname(idx))) == ["train.idx", "train.idx" + ENDING]


OPEN = """
import sys, time
from partial_fc.data.recordio.index import open_index
start = time.process_time()
index = open_index(sys.argv[1], int(sys.argv[2]))
seconds = time.process_time() - start  # of the processor: others may have it meanwhile
status = dict(line.split(":") for line in open("/proc/self/status"))
peak, own = (int(status[name].split()[0]) / 1024 for name in ("VmHWM", "RssAnon"))
print(seconds, peak, own, index.offsets[-1])
"""


@pytest.mark.slow
@pytest.mark.thorough
def test_17_million_images_in_5_seconds_and_500_megabytes(idx):
    """An index of the size of Glint360K, parsed and then mapped, in a process that has imported only NumPy."""
    blocks = 175  # of 100,000 lines: key P00000 is at offset P000000000
    template = "".join(f"P{low:05d}\tP{low:05d}0000\n" for low in range(100_000)).encode()
    with open(idx, "wb") as file:
        file.writelines(f"{key}\t{key}0000\n".encode() for key in range(100_000))
        file.writelines(template.replace(b"P", b"%d" % block) for block in range(1, blocks))
    last = (blocks * 100_000 - 1) * 10_000
    for own_at_most in (500, 60):  # the second process maps the file that the first has written
        command = [sys.executable, "-c", OPEN, idx, str(last + 8)]
        result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=800)
        seconds, peak, own, found = result.stdout.split()
        assert float(seconds) < 5 and float(peak) < 500 and float(own) < own_at_most and int(found) == last
