import errno
import hashlib
import os
import resource
import signal
from pathlib import Path

import numpy as np
import pytest

from partial_fc.checkpoint import replace_file, write_file
from partial_fc.utils import atomic_io
from partial_fc.utils.atomic_io import PART, replacing
from synced_disk import SyncedDisk


def test_chunks_of_any_size_and_kind(tmp_path):
    big = np.arange(3 * PART // 4 + 5, dtype=np.float32).reshape(-1, 1)
    chunks = [b"", b"abc", memoryview(b"defg"), np.empty((0, 3), np.float32), big, np.int64(7)]
    expected = b"abcdefg" + big.tobytes() + np.int64(7).tobytes()
    (tmp_path / "a").write_bytes(b"longer" + expected)
    calls = []
    entry = write_file(str(tmp_path / "a"), chunks, report_progress=lambda: calls.append(1))
    assert (tmp_path / "a").read_bytes() == expected
    assert entry == (len(expected), hashlib.sha256(expected).hexdigest())
    assert len(calls) == 2 + 4 + 1  # none longer than PART


@pytest.mark.parametrize(
    "path, reason",
    [("/dev/full", "No space left on device"), ("missing/a", "No such file or directory"), (".", "Is a directory")],
)
def test_an_error_names_the_file_and_the_reason(path, reason, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OSError, match=f"cannot write {path}: {reason}") as error:
        write_file(path, [b"x"])
    assert os.strerror(error.value.errno) == reason


def test_the_old_file_stays_until_the_new_one_is_complete(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = Path("a")  # without a folder
    path.write_bytes(b"old")

    def chunks():
        yield b"new"
        assert path.read_bytes() == b"old"
        yield b"er"

    assert replace_file(str(path), chunks()) == (5, hashlib.sha256(b"newer").hexdigest())
    assert path.read_bytes() == b"newer"
    assert os.listdir(tmp_path) == ["a"]


def test_content_and_name_are_on_disk(tmp_path, monkeypatch):
    """Also for a file that is larger than the interval between two calls of fsync."""
    monkeypatch.setattr(atomic_io, "SYNC_INTERVAL", 2 * PART)
    disk = SyncedDisk(monkeypatch)
    write_file(str(tmp_path / "a"), [b"content"])
    assert disk.has(tmp_path / "a")
    for size in (5, 2 * PART, 3 * PART):
        replace_file(str(tmp_path / "b"), [bytes(size)])
        assert disk.has(tmp_path) and not disk.early


@pytest.mark.parametrize("error", [OSError(errno.EIO, "of the disk"), FloatingPointError("row 3"), KeyboardInterrupt()])
def test_an_error_leaves_the_old_file(error, tmp_path):
    (tmp_path / "a").write_bytes(b"old")

    def chunks():
        yield b"new"
        raise error

    with pytest.raises(type(error)):
        replace_file(str(tmp_path / "a"), chunks())
    assert (tmp_path / "a").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_planted_links_are_not_followed(tmp_path, monkeypatch):
    victim, path = tmp_path / "victim", tmp_path / "a"
    victim.write_bytes(b"precious")
    for name in ("a", "a.writing", "a.01234567.writing"):
        (tmp_path / name).symlink_to(victim)
    with pytest.raises(OSError, match="cannot write .*/a: Too many levels of symbolic links"):
        write_file(str(path), [b"new"])
    with monkeypatch.context() as guessed:
        guessed.setattr("secrets.token_hex", lambda size: "01234567")
        with pytest.raises(OSError, match="cannot write .*/a: File exists"):
            replace_file(str(path), [b"new"])
    replace_file(str(path), [b"new"])
    assert victim.read_bytes() == b"precious" and not path.is_symlink() and path.read_bytes() == b"new"


def test_leftovers_of_killed_processes_are_removed_but_no_file_that_is_being_written(tmp_path):
    path, calls = str(tmp_path / "a[1]"), []
    (tmp_path / "a[1].0123abcd.writing").write_bytes(b"left")
    (tmp_path / "a1.0123abcd.writing").write_bytes(b"of another file")
    (tmp_path / "a[1].b.0123abcd.writing").write_bytes(b"of another file")
    with replacing(path) as first:
        first.write(b"first")
        replace_file(path, [b"second"], lambda: calls.append(1))
    assert sorted(os.listdir(tmp_path)) == ["a1.0123abcd.writing", "a[1]", "a[1].b.0123abcd.writing"]
    assert (tmp_path / "a[1]").read_bytes() == b"first" and calls == [1]


def test_the_mode_of_a_file_follows_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        replace_file(str(tmp_path / "a"), [b"for the group"])
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


def test_a_write_that_fails_after_its_first_bytes_is_an_error(tmp_path):
    """As on a full disk: os.write first writes less than it should, and then fails."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    (tmp_path / "b").write_bytes(b"old")
    try:
        for write, name in ((write_file, "a"), (replace_file, "b")):
            with pytest.raises(OSError, match="cannot write .*: File too large"):
                write(str(tmp_path / name), [bytes(10_001)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert (tmp_path / "a").stat().st_size == 10_000 and (tmp_path / "b").read_bytes() == b"old"
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]
