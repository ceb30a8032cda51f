import os

import pytest

from partial_fc.utils.regular_files import read_regular


def test_a_regular_file_of_at_most_the_size_is_read(tmp_path):
    (tmp_path / "a").write_bytes(b"12345")
    assert read_regular(tmp_path / "a", 5) == b"12345"
    with pytest.raises(OSError, match="more than 4 bytes"):
        read_regular(tmp_path / "a", 4)


def test_a_pipe_a_device_and_a_folder_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for path in (tmp_path / "pipe", tmp_path / "zero", tmp_path):
        with pytest.raises(OSError, match="no regular file|directory"):
            read_regular(path, 100)


def test_a_file_outside_of_its_root_is_refused_by_whatever_path(tmp_path):
    root, linked = tmp_path / "root", tmp_path / "linked"
    (root / "below").mkdir(parents=True)
    linked.symlink_to(root)
    (tmp_path / "root-secret").write_bytes(b"secret")
    (root / "below" / "a").write_bytes(b"a")
    (root / "b").symlink_to("below/a")
    (root / "out").symlink_to("../root-secret")
    for path in (root / "below" / "a", root / "b", linked / "b"):
        assert read_regular(path, 1, root) == read_regular(path, 1, linked) == b"a"
    for path in (root / "out", root / ".." / "root-secret", tmp_path / "root-secret"):
        with pytest.raises(PermissionError, match="outside of"):
            read_regular(path, 100, root)


def test_a_folder_that_becomes_a_link_between_two_files_leads_nowhere(tmp_path):
    """As somebody can have it who owns a set that others read."""
    (tmp_path / "root" / "below").mkdir(parents=True)
    (tmp_path / "private").mkdir()
    for folder in ("root/below", "private"):
        (tmp_path / folder / "a").write_bytes(folder[:1].encode())
    root, path = str(tmp_path / "root"), tmp_path / "root" / "below" / "a"
    assert read_regular(path, 1, root) == b"r"
    (tmp_path / "root" / "below").rename(tmp_path / "root" / "before")
    (tmp_path / "root" / "below").symlink_to(tmp_path / "private")
    with pytest.raises(PermissionError, match="outside of"):
        read_regular(path, 1, root)
