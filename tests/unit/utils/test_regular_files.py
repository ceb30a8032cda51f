import os

import numpy as np
import pytest

from partial_fc.checkpoint.arrays import open_array, read_arrays
from partial_fc.checkpoint.class_map import read_class_map
from partial_fc.checkpoint.mxnet_params import named_arrays
from partial_fc.checkpoint.verify import verify_file
from partial_fc.data.names import parse_names
from partial_fc.data.pairs_bin import read_pairs as read_pairs_bin
from partial_fc.data.recordio.index import parse_index
from partial_fc.export.onnx import read_checkpoint
from partial_fc.utils.atomic_io import Entry
from partial_fc.utils.regular_files import read_regular
from partial_fc.utils.text import read_lines
from partial_fc_tools.ijb.lists import read_pairs
from partial_fc_tools.inference.index import read_index
from partial_fc_tools.inference.origin import files_digest
from partial_fc_tools.submission.rules import check_pixel_files


def test_a_regular_file_of_at_most_the_size_is_read(tmp_path):
    (tmp_path / "a").write_bytes(b"12345")
    assert read_regular(tmp_path / "a", 5) == b"12345"
    with pytest.raises(OSError, match="more than 4 bytes"):
        read_regular(tmp_path / "a", 4)


def test_pipes_devices_and_folders_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for path in (tmp_path / "pipe", tmp_path / "zero", tmp_path):
        with pytest.raises(OSError, match="not a regular file|directory"):
            read_regular(path, 100)


def test_a_file_outside_of_its_root_is_refused(tmp_path):
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


def test_a_folder_that_becomes_a_link_between_two_reads_is_refused(tmp_path):
    """The owner of a set can replace a folder while others read it."""
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


# For each reader of binary files: the name of the file, and a function of its path. test_text.py has the text files.
READERS = {
    "crop": ("crop.txt", lambda path: check_pixel_files(os.path.dirname(path))),
    "embeddings": ("a.npy", read_index),
    "pairs": ("lfw.bin", read_pairs_bin),
    "class map of NumPy": ("map.npy", lambda path: read_class_map(path, 2, 9)),
    "array": ("a.npy", open_array),
    "arrays": ("a.npz", read_arrays),
    "parameters": ("a-0001.params", named_arrays),
    "symbol": ("a-symbol.json", read_checkpoint),
    "checkpoint": ("a.npy", lambda path: verify_file(*os.path.split(path), Entry(0, ""), lambda: None)),
    "model": ("a.onnx", lambda path: files_digest([path])),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name, read", READERS.values(), ids=READERS)
def test_a_pipe_instead_of_a_file_is_refused_at_once(tmp_path, name, read):
    path = tmp_path / name
    (tmp_path / "a-0001.params").touch()
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    with pytest.raises(OSError, match="not a regular file|does not exist") as error:
        read(str(path))
    assert str(path) in str(error.value)


@pytest.mark.parametrize("folder", ["/dev/fd", "/proc/self/fd"])
def test_a_list_may_be_a_pipe_of_the_shell(tmp_path, folder):
    read, write = os.pipe()
    os.write(write, b"a\r\nb")
    os.close(write)
    os.symlink(f"{folder}/{read}", tmp_path / "list")
    with pytest.raises(OSError, match="not a regular file"):
        list(read_lines(tmp_path / "list"))
    assert list(read_lines(f"{folder}/{read}")) == ["a", "b"]
    os.close(read)


@pytest.mark.parametrize("content, size", [(b"", 1 << 40), (b"0\t8\n" * 4096, 1 << 40), (b"0\ta\n" * 1024, 1 << 13)])
@pytest.mark.parametrize("read", [read_lines, parse_names, parse_index, lambda path: read_pairs(path, np.arange(3))])
def test_a_list_with_a_hole_is_refused(content, size, read, tmp_path):
    (tmp_path / "list").write_bytes(content)
    os.truncate(tmp_path / "list", size)
    with pytest.raises(ValueError, match=f"list is not text: .* zeros from byte {len(content)} on"):
        list(read(str(tmp_path / "list")))
