"""Results that appear only once they are complete."""

import glob
import os
from pathlib import Path

import pytest

from partial_fc.utils.atomic_io import write_file
from partial_fc.utils.staging import MARKER, PREFIX, opened_folder, staged_files, staged_folder


def write_files(out, text, force=False, error=None):
    with staged_files(out, ["b", "a"], force) as stage:
        for name in "ab":
            Path(stage, name).write_text(text)
        if error:
            raise error


def contents(folder):
    return {str(path.relative_to(folder)): path.is_file() and path.read_text() for path in folder.rglob("*")}


def test_files_appear_only_together_and_replace_others_only_if_forced(tmp_path):
    out = tmp_path / "new" / "out"
    with pytest.raises(KeyboardInterrupt):
        write_files(out, "0", error=KeyboardInterrupt)
    assert not out.exists()
    write_files(out, "1")
    with pytest.raises(FileExistsError, match="out/b already exists: .*--force"):
        write_files(out, "2")
    with pytest.raises(KeyboardInterrupt):
        write_files(out, "2", force=True, error=KeyboardInterrupt)
    assert contents(out) == {"a": "1", "b": "1"}
    write_files(out, "2", force=True)
    assert contents(out) == {"a": "2", "b": "2"}
    (out / "a").unlink()
    (out / "a").mkdir()
    with pytest.raises(IsADirectoryError, match="out/a is a folder"):
        write_files(out, "3", force=True)
    assert contents(out) == {"a": False, "b": "2"}


def test_the_first_file_moves_last_because_readers_look_for_it(tmp_path):
    (tmp_path / "b").write_text("old")
    with pytest.raises(OSError, match="cannot be written|is a folder|Is a directory"):
        with staged_files(tmp_path, ["b", "a"], True) as stage:
            for name in "ab":
                Path(stage, name).touch()
            (tmp_path / "a").mkdir()  # meanwhile
    assert os.listdir(tmp_path) == ["a"]
    os.symlink("nowhere", tmp_path / "b")
    with pytest.raises(FileExistsError, match="b already exists"):
        write_files(tmp_path, "4")


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
            Path(stage, text).touch()
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


def write_tree(folder, name="a/old", **options):
    with staged_folder(folder, True, **options) as stage:
        os.makedirs(os.path.dirname(os.path.join(stage, name)), exist_ok=True)
        open(os.path.join(stage, name), "w").close()


@pytest.mark.parametrize("mine", ["thesis.txt", "a/notes.txt", "b/c/.hidden", "a/link", "new"])
@pytest.mark.parametrize("given", ["x", ".", "link"])
def test_only_files_that_a_command_wrote_are_replaced(mine, given, tmp_path, monkeypatch):
    root = tmp_path / "x"
    write_tree(root)
    (tmp_path / "link").symlink_to(root)
    monkeypatch.chdir(root if given == "." else tmp_path)
    path = root / mine
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(tmp_path) if mine == "a/link" else path.write_text("mine")
    before = contents(root)
    with pytest.raises(FileExistsError, match=f"/x holds {mine}, "):
        write_tree(given, "new")
    assert contents(root) == before and sorted(os.listdir(tmp_path)) == ["link", "x"]
    write_tree(given, "new", own=[mine])
    assert sorted(os.listdir(root)) == [MARKER, "new"] and sorted(os.listdir(tmp_path)) == ["link", "x"]


def test_files_and_what_came_meanwhile_are_not_replaced(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FileExistsError, match="/file holds|/file is not a folder"):
        write_tree(tmp_path / "file")
    write_tree(tmp_path / "x")
    with pytest.raises(FileExistsError, match="/x holds thesis"), staged_folder(tmp_path / "x", True):
        (tmp_path / "x" / "thesis").write_text("mine")
    assert sorted(contents(tmp_path)) == ["file", "x", f"x/{MARKER}", "x/a", "x/a/old", "x/thesis"]


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
    with staged_files(tmp_path, ["a"], False) as one, staged_files(tmp_path, ["b"], False) as two:
        Path(one, "a").touch()
        Path(two, "b").touch()
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


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
def test_a_replacement_of_the_temporary_folder_is_neither_used_nor_removed(write, planted, tmp_path):
    """A member of the group can rename the temporary folder while a command runs, and put something in its place."""
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
