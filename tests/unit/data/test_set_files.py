"""Untrusted sets with special files, links out of the folder, and names of files of the host."""

import ast
import os

import numpy as np
import pytest

from command_line import exit_code
from damage import check_damaged
from face_sets import face_batches
from image_forms import SIZE, draw, write_folders, write_shard
from partial_fc.data.sources.folders import FolderImages
from partial_fc.data.sources.shards import FORMAT, index_shard, open_shard
from partial_fc.data.stamped_words import file_stamp, write_words
from partial_fc.utils.regular_files import FOLLOW_LINKS
from partial_fc_tools.inference.image_folder import face_names, read_faces
from partial_fc_tools.sets.alignment import read_rgb
from paths import ROOT


def fifo(path, outside):
    os.mkfifo(path)


def device(path, outside):
    path.symlink_to("/dev/zero")


def link(path, outside):
    path.symlink_to(outside / "private.png")


DOORS = {
    "train": lambda root: face_batches(str(root), 20, SIZE).batch(0, 0),
    "sets pack": lambda root: exit_code("sets", "pack", root, f"{root}-out", "--size", "16", "--workers", "1"),
    "embed": lambda root: [pytest.fail(text) for text in read_faces(root, face_names(root)[0], SIZE)[2]],
    "evaluate ijb": lambda root: read_rgb(str(root / "001" / "x.png"), str(root)),
    "sets bin": lambda root: pairs(root, "001/x.png"),
}


def pairs(root, name):
    with open(f"{root}.txt", "w") as file:
        file.write(f"{name} 001/000.png 1\n000/000.png 001/000.png 0\n")
    arguments = ["--pairs", f"{root}.txt", "--images", str(root), "--size", "16", "--workers", "1"]
    return exit_code("sets", "bin", f"{root}.bin", *arguments)


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLLOW_LINKS, "1")  # so that the fixture restores it
    monkeypatch.delenv(FOLLOW_LINKS)
    write_folders(tmp_path / "set", draw())
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "private.png").write_bytes(draw()[0][0])
    return tmp_path / "set"


def refused(root, door, capsys):
    try:
        code = door(root)
    except (OSError, ValueError, pytest.fail.Exception) as error:
        return str(error)
    assert code == 2
    return capsys.readouterr().err


@pytest.mark.timeout(60)
@pytest.mark.parametrize("make", [fifo, device, link])
@pytest.mark.parametrize("door", DOORS)
def test_only_regular_files_in_the_folder_are_images(door, make, root, capsys, monkeypatch):
    make(root / "001" / "x.png", root.parent / "outside")
    message = refused(root, DOORS[door], capsys)
    assert "x.png" in message
    assert ("--follow-links" if make is link else "") in message
    monkeypatch.setenv(FOLLOW_LINKS, "1")
    if make is link:
        assert repr(DOORS[door](root)) != "2"
    else:
        assert "x.png" in refused(root, DOORS[door], capsys)


@pytest.mark.parametrize("name", ["../outside/private.png", "/etc/hostname", "001/../../outside/private.png"])
def test_a_list_names_images_of_its_folder_only(name, root, capsys):
    assert pairs(root, name) == 2
    assert "it is outside of" in capsys.readouterr().err


@pytest.mark.parametrize("door", ["train", "sets pack", "embed"])
def test_a_folder_may_be_a_link_and_hold_links_inside(door, root, capsys):
    os.rename(root / "000" / "000.png", root / "000" / "real.png")
    os.symlink("real.png", root / "000" / "000.png")
    os.symlink(root, root.parent / "linked")
    done = DOORS[door](root.parent / "linked")
    assert len(done.labels) == 20 if door == "train" else done in (0, [])


@pytest.mark.parametrize("door", ["train", "sets pack", "embed"])
def test_a_folder_of_the_host_is_not_listed(door, root, capsys):
    os.symlink("/etc", root / "zzz")
    assert "it is outside of" in refused(root, DOORS[door], capsys)


@pytest.mark.timeout(60)
def test_folders_that_links_name_again_and_again_are_listed_once(tmp_path):
    for depth in range(24):
        (tmp_path / str(depth)).mkdir()
        for name in "ab":
            os.symlink(f"../{depth + 1}", tmp_path / str(depth) / name)
    (tmp_path / "24").mkdir()
    (tmp_path / "24" / "1.png").write_bytes(draw()[0][0])
    assert face_names(tmp_path)[0] == ["24/1.png"]
    with pytest.raises(ValueError, match="links to one folder"):
        os.symlink("24", tmp_path / "25")
        FolderImages(str(tmp_path))


def test_damaged_shards_are_refused_or_read(tmp_path):
    path = tmp_path / "faces.tar"
    write_shard(path, {"0.png": b"image", "0.cls": b"1", "1.png": b"another", "1.cls": b"0"})
    check_damaged(path, path.read_bytes(), index_shard)


@pytest.mark.parametrize(
    "word, value", [(2, 2**40), (2, -1), (3, 10_000), (3, 2**62), (3, -1), (4, -1), (0, 10**12), (0, 0)]
)
def test_an_index_that_others_have_planted_beside_a_shard_names_no_places_outside_of_it(tmp_path, word, value):
    """Its stamp and its checksum are valid, because an attacker can compute both."""
    path = tmp_path / "faces.tar"
    write_shard(path, {"0.png": b"image", "0.cls": b"1"})
    images = open_shard(str(path))
    words = np.array([1, images.sum(), *images.ravel()])
    words[word] = value
    words[1] = words[2:].sum()
    os.remove(f"{path}.index")
    write_words(f"{path}.index", file_stamp(str(path), FORMAT), words)
    np.testing.assert_array_equal(open_shard(str(path)), images)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("plant", [os.mkfifo, lambda path: os.symlink("/dev/zero", path)], ids=["pipe", "device"])
def test_an_index_that_is_no_file_is_neither_read_nor_replaced(tmp_path, plant):
    write_shard(tmp_path / "faces.tar", {"0.png": b"image", "0.cls": b"1"})
    plant(tmp_path / "faces.tar.index")
    assert open_shard(str(tmp_path / "faces.tar"))[:, 1:].tolist() == [[5, 1]]
    assert not (tmp_path / "faces.tar.index").is_file()


# Files that open files in another way, and why that is safe.
READ_OTHERWISE = {
    "data/face_records.py", "data/recordio/index.py", "data/recordio/reader.py",  # after os.path.isfile
    "data/synthetic/writer.py",  # written by this program
    "data/sources/shards.py",  # after require_regular
    "sets/check.py", "sets/check_records.py",  # a RecordReader has opened them before
    "checkpoint/arrays.py", "index/folder.py",  # written by this program
}  # fmt: skip


def test_files_of_sets_are_opened_by_the_helper():
    found = set()
    rooms = {ROOT / "partial_fc": ("data", "evaluation", "checkpoint", "export")}
    rooms[ROOT / "tools/partial_fc_tools"] = (
        *("sets", "inference", "index", "ijb", "submission", "verify", "checkpoints", "export"),
    )
    for top, names in rooms.items():
        for path in (path for name in names for path in (top / name).rglob("*.py")):
            for call in ast.walk(ast.parse(path.read_text())):
                if isinstance(call, ast.Call) and reads(call):
                    found.add(str(path.relative_to(top)))
    assert found <= READ_OTHERWISE


def reads(call):
    """Whether a call opens a file by name for reading, without partial_fc.utils.regular_files."""
    name = ast.unparse(call.func)
    modes = [node.value for node in (*call.args[1:2], *(key.value for key in call.keywords if key.arg == "mode"))
             if isinstance(node, ast.Constant)]  # fmt: skip
    if name == "open":
        return not {*"wxa"} & {*"".join(modes)}
    return name in ("os.open", "io.open", "np.fromfile", "np.load", "cv2.imread") or name.endswith(
        (".read_bytes", ".read_text")
    )
