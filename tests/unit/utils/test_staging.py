"""Results that appear only when they are complete."""

import glob
import os
from pathlib import Path

import pytest

from partial_fc.utils.atomic_io import write_file
from partial_fc.utils.staging import MARKER, PREFIX, opened_folder, staged_files, staged_folder


def test_files_appear_only_together_and_replace_others_only_if_forced(tmp_path):
    out = str(tmp_path / "new" / "out")

    def write(text, force=False, fail=False):
        with staged_files(out, ["b", "a"], force) as stage:
            for name in "ab":
                with open(os.path.join(stage, name), "w") as file:
                    file.write(text)
            if fail:
                raise KeyboardInterrupt

    def read():
        return {name: open(os.path.join(out, name)).read() for name in os.listdir(out)}

    with pytest.raises(KeyboardInterrupt):
        write("0", fail=True)
    assert not os.path.exists(out)
    write("1")
    assert read() == {"a": "1", "b": "1"}
    with pytest.raises(FileExistsError, match="out/b already exists: .*--force"):
        write("2")
    with pytest.raises(KeyboardInterrupt):
        write("2", force=True, fail=True)
    assert read() == {"a": "1", "b": "1"}
    write("2", force=True)
    assert read() == {"a": "2", "b": "2"}
    os.remove(os.path.join(out, "a"))
    os.mkdir(os.path.join(out, "a"))
    with pytest.raises(IsADirectoryError, match="out/a is a folder"):
        write("3", force=True)
    assert open(os.path.join(out, "b")).read() == "2"
    os.rmdir(os.path.join(out, "a"))
    with pytest.raises(OSError, match="out cannot be written|is a folder|Is a directory"):
        with staged_files(out, ["b", "a"], True) as stage:
            for name in "ab":
                open(os.path.join(stage, name), "w").close()
            os.mkdir(os.path.join(out, "a"))  # meanwhile
    assert os.listdir(out) == ["a"]  # the first one, which readers look for, moves last
    os.symlink("nowhere", os.path.join(out, "b"))
    with pytest.raises(FileExistsError, match="out/b already exists"):
        write("4")


def files_of_a(out, swap):
    with staged_files(out, ["a"], False) as stage:
        name = swap()
        Path(stage, "a").write_text("new")
    return name


def tree_of_a(out, swap):
    with staged_folder(out) as stage:
        name = swap()
        Path(stage, "a").write_text("new")
    return name


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_appears_only_when_it_is_complete(force, tmp_path):
    def write(text, fail=False):
        with staged_folder(tmp_path / "x", force) as stage:
            open(os.path.join(stage, text), "w").close()
            if fail:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write("none", fail=True)
    assert os.listdir(tmp_path) == []
    write("old")
    with pytest.raises(KeyboardInterrupt if force else FileExistsError):
        write("new", fail=True)
    assert sorted(os.listdir(tmp_path / "x")) == [MARKER, "old"]
    if force:
        write("new")
        assert sorted(os.listdir(tmp_path / "x")) == [MARKER, "new"] and os.listdir(tmp_path) == ["x"]


def tree(root):
    return {str(path.relative_to(root)): path.is_file() and path.read_bytes() for path in root.rglob("*")}


def write_tree(folder, name="a/old", **options):
    with staged_folder(folder, True, **options) as stage:
        os.makedirs(os.path.dirname(os.path.join(stage, name)), exist_ok=True)
        open(os.path.join(stage, name), "w").close()


@pytest.mark.parametrize("mine", ["thesis.txt", "a/notes.txt", "b/c/.hidden", "a/link", "new"])
@pytest.mark.parametrize("given", ["x", ".", "link"])
def test_only_what_a_command_wrote_is_replaced(mine, given, tmp_path, monkeypatch):
    root = tmp_path / "x"
    write_tree(root)
    (tmp_path / "link").symlink_to(root)
    monkeypatch.chdir(root if given == "." else tmp_path)
    path = root / mine
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(tmp_path) if mine == "a/link" else path.write_text("mine")
    before = tree(root)
    with pytest.raises(FileExistsError, match=f"/x holds {mine}, "):
        write_tree(given, "new")
    assert tree(root) == before and sorted(os.listdir(tmp_path)) == ["link", "x"]
    write_tree(given, "new", own=[mine])
    assert sorted(os.listdir(root)) == [MARKER, "new"] and sorted(os.listdir(tmp_path)) == ["link", "x"]


def test_neither_a_file_nor_what_came_meanwhile_is_replaced(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FileExistsError, match="/file holds|/file is no folder"):
        write_tree(tmp_path / "file")
    write_tree(tmp_path / "x")
    with pytest.raises(FileExistsError, match="/x holds thesis"), staged_folder(tmp_path / "x", True):
        (tmp_path / "x" / "thesis").write_text("mine")
    assert sorted(tree(tmp_path)) == ["file", "x", f"x/{MARKER}", "x/a", "x/a/old", "x/thesis"]


@pytest.mark.parametrize("done", [1, 2])
def test_an_interrupt_while_folders_are_renamed_keeps_the_old_or_the_new_one(done, tmp_path, monkeypatch):
    (tmp_path / "x" / "old").mkdir(parents=True)
    rename, calls = os.rename, []

    def interrupted(source, target):
        rename(source, target)
        calls.append(target)
        if len(calls) == done:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt), staged_folder(tmp_path / "x", force=True) as stage:
        os.mkdir(os.path.join(stage, "new"))
    assert os.listdir(tmp_path) == ["x"] and ["old", "new"][done - 1] in os.listdir(tmp_path / "x")


def test_concurrent_stages_are_different_folders(tmp_path):
    """Containers that share a folder have the same process ids: a stage must not remove that of another one."""
    other = tmp_path / f".partial_fc-{os.getpid()}"
    other.mkdir()
    (other / "train.rec").touch()
    with staged_files(tmp_path, ["a"], False) as one, staged_files(tmp_path, ["b"], False) as two:
        assert one != two
        for stage, name in ((one, "a"), (two, "b")):
            open(os.path.join(stage, name), "w").close()
    with staged_folder(tmp_path / "tree"):
        pass
    assert sorted(os.listdir(tmp_path)) == [other.name, "a", "b", "tree"] and os.listdir(other) == ["train.rec"]


def test_results_have_the_permissions_of_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        with staged_folder(tmp_path / "tree"):
            pass
    finally:
        os.umask(before)
    assert (tmp_path / "tree").stat().st_mode & 0o777 == 0o750


@pytest.mark.parametrize("staged", [lambda path: staged_files(path, ["a"], False), staged_folder])
def test_a_full_disk_names_the_folder_and_the_fix(tmp_path, staged):
    with pytest.raises(OSError, match="/out cannot be written: No space left on device: free space there, or name"):
        with staged(str(tmp_path / "out")), open("/dev/full", "wb", buffering=0) as full:
            full.write(b"x")
    with pytest.raises(FileNotFoundError, match="elsewhere"):  # not an error of writing: unchanged
        with staged(str(tmp_path / "out")):
            open(tmp_path / "elsewhere")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("write", [files_of_a, tree_of_a])
@pytest.mark.parametrize("planted", ["link", "folder"])
def test_what_is_put_in_the_place_of_the_temporary_folder_stays_as_it_is(write, planted, tmp_path):
    """A member of the folder's group can rename it, and what else is there, while a command runs."""
    (other := tmp_path / "other").mkdir()
    (other / "a").write_text("mine")

    def swap():
        (name,) = glob.glob(f"{tmp_path}/**/{PREFIX}*", recursive=True)
        os.rename(name, tmp_path / "moved")
        os.symlink(other, name) if planted == "link" else os.rename(other, name)
        return name

    name = write(tmp_path / "out", swap)
    assert open(os.path.join(name, "a")).read() == "mine"
    assert (tmp_path / "out" / "a").read_text() == "new" and not os.listdir(tmp_path / "moved")


def test_errors_in_an_opened_folder_have_its_name(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"'{tmp_path}/none'"), opened_folder(str(tmp_path)) as place:
        open(os.path.join(place, "none"))
    with pytest.raises(OSError, match=f"cannot write {tmp_path}/none/a: "), opened_folder(str(tmp_path)) as place:
        write_file(os.path.join(place, "none", "a"), [])
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(OSError), opened_folder(str(tmp_path / "link")):
        raise AssertionError
