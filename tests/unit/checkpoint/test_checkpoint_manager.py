import logging
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from checkpoint_files import write_checkpoint
from partial_fc.checkpoint import CheckpointFolder, read_manifest, write_file
from partial_fc.checkpoint.backbone import read_backbone
from partial_fc_tools.checkpoints.check import check
from paths import ROOT
from synced_disk import SyncedDisk


def updates(folder):
    return [number for number, _ in folder.complete()]


def test_the_newest_complete_checkpoint_is_first(tmp_path):
    folder = CheckpointFolder(str(tmp_path / "checkpoints"), kept=2)
    assert folder.complete() == []
    for number in (900, 12_345_678_901, 20):
        path = write_checkpoint(folder.path, number)
        assert os.path.basename(path) == f"step-{number:010}"
        assert read_manifest(path).num_update == number
    assert updates(folder) == [12_345_678_901, 900, 20]
    assert folder.complete()[1] == (900, os.path.join(folder.path, "step-0000000900"))


def test_other_names_are_not_complete_checkpoints(tmp_path):
    folder = CheckpointFolder(str(tmp_path), kept=2)
    write_checkpoint(tmp_path, 1, commit=False)
    whole = write_checkpoint(tmp_path, 2)
    for name in ("step-0000000003.old", "step-0000000003.left", "step-3", "other", "step-0000000003.writing"):
        (tmp_path / name).mkdir()
        os.link(f"{whole}/manifest.json", tmp_path / name / "manifest.json")
    (tmp_path / "step-0000000004").mkdir()  # without a manifest
    (tmp_path / "step-0000000005").write_text("a file")
    assert updates(folder) == [2]


def test_all_ranks_write_to_the_same_folder_but_not_through_a_planted_link(tmp_path):
    folder = CheckpointFolder(str(tmp_path / "a" / "b"), kept=2)
    path = tmp_path / "a" / "b" / "step-0000000007.writing"
    assert folder.begin(7) == folder.begin(7) == str(path)
    path.rmdir()
    path.symlink_to(tmp_path)
    with pytest.raises(OSError, match=f"cannot create {path}: Too many levels of symbolic links"):
        folder.begin(7)


def test_a_checkpoint_is_on_the_disk(tmp_path, monkeypatch):
    """Its files before their folder has the name of a complete checkpoint, and the name before another one goes."""
    folder, disk = CheckpointFolder(str(tmp_path), kept=1), SyncedDisk(monkeypatch)
    for number in (1, 2):
        write_checkpoint(tmp_path, number)
        assert disk.has(tmp_path)
    removed, rmtree = [], shutil.rmtree
    monkeypatch.setattr(shutil, "rmtree", lambda path: removed.append(disk.has(tmp_path)) or rmtree(path))
    folder.prune()
    assert not disk.early and removed == [True] and updates(folder) == [2]
    assert folder.set_aside_newer(1) and disk.has(tmp_path)


@pytest.fixture
def unfinished(tmp_path):
    """(folder, manifest): written by all ranks, not complete yet."""
    manifest = read_manifest(write_checkpoint(tmp_path / "elsewhere", 5))
    write_checkpoint(tmp_path, 5, commit=False)
    return CheckpointFolder(str(tmp_path), kept=2), manifest


@pytest.mark.parametrize("size", [None, 100])
def test_a_checkpoint_with_a_missing_or_truncated_file_is_not_completed(size, unfinished):
    folder, manifest = unfinished
    path = os.path.join(folder.begin(5), "momentum-00001.npy")
    os.remove(path) if size is None else os.truncate(path, size)
    with pytest.raises((OSError, ValueError), match=f"{path} {'does not exist' if size is None else 'has 100 bytes'}"):
        folder.commit(5, manifest)
    assert folder.complete() == []


def test_files_of_an_earlier_attempt_with_more_ranks_are_removed(unfinished):
    folder, manifest = unfinished
    write_file(os.path.join(folder.begin(5), "centers-00002.npy"), [b"left over"])
    write_file(os.path.join(folder.begin(5), "notes.txt"), [b"of the user"])
    path = folder.commit(5, manifest)
    assert set(os.listdir(path)) == {*manifest.files, "manifest.json", "notes.txt"}


@pytest.mark.parametrize("rank, size, expected", [(3, 4, [3, 8]), (0, 1, [1.5, 8]), (4, 5, [1.5, 8])])
def test_running_statistics_of_the_rank_or_the_mean_of_all(rank, size, expected, tmp_path):
    path = write_checkpoint(tmp_path, 5, ranks=4, seed=8)
    read = read_backbone(path, read_manifest(path), rank, size)
    assert read["aux:bn_moving_mean"].tolist() == expected and read["arg:seed"] == 8


def test_a_complete_checkpoint_is_never_overwritten(unfinished):
    folder, manifest = unfinished
    folder.commit(5, manifest)
    write_checkpoint(folder.path, 5, seed=1, commit=False)
    with pytest.raises(OSError):
        folder.commit(5, replace(manifest, origin={"other": 1}))
    assert read_manifest(folder.complete()[0][1]) == manifest


def test_prune_keeps_the_newest(tmp_path):
    folder = CheckpointFolder(str(tmp_path), kept=2)
    for number in (1, 2, 3, 4):
        write_checkpoint(tmp_path, number)
    (tmp_path / "step-0000000000.old").mkdir()
    write_checkpoint(tmp_path, 9, commit=False)
    (tmp_path / "notes.old").write_text("of the user")
    for _ in range(2):
        folder.prune()
        assert set(os.listdir(tmp_path)) == {f"step-000000000{end}" for end in ("3", "4", "9.writing")} | {"notes.old"}


def test_a_warning_names_a_checkpoint_that_cannot_be_removed(tmp_path, caplog):
    folder = CheckpointFolder(str(tmp_path), kept=1)
    for number in (1, 2):
        write_checkpoint(tmp_path, number)
    (tmp_path / "step-0000000001.old").write_text("in the way")
    with caplog.at_level(logging.WARNING):
        folder.prune()
    assert f"cannot remove {tmp_path / 'step-0000000001.old'}" in caplog.text
    assert updates(folder) == [2, 1]
    os.remove(tmp_path / "step-0000000001.old")
    folder.prune()
    assert updates(folder) == [2]


def test_clean_removes_incomplete_checkpoints(tmp_path):
    folder = CheckpointFolder(str(tmp_path), kept=1)
    folder.clean()
    for number in (1, 2):
        write_checkpoint(tmp_path, number)
    write_checkpoint(tmp_path, 3, commit=False)
    (tmp_path / "step-0000000000.old" / "inside").mkdir(parents=True)
    (tmp_path / "step-0000000004.left").mkdir()
    (tmp_path / "user.writing").mkdir()
    folder.clean()
    assert set(os.listdir(tmp_path)) == {f"step-000000000{end}" for end in ("1", "2", "4.left")} | {"user.writing"}


def test_newer_checkpoints_are_kept_under_another_name(tmp_path):
    folder = CheckpointFolder(str(tmp_path), kept=1)
    assert folder.set_aside_newer(0) == []
    for seed in range(3):  # the training resumes from update 1 three times
        for number in (1, 2, 3) if not seed else (2, 3):
            write_checkpoint(tmp_path, number, seed=seed)
        ending = ".left" + (f"-{seed + 1}" if seed else "")
        assert folder.set_aside_newer(1) == [str(tmp_path / f"step-000000000{number}{ending}") for number in (3, 2)]
        assert updates(folder) == [1]
    folder.clean()
    folder.prune()
    assert len(os.listdir(tmp_path)) == 7
    assert read_manifest(str(tmp_path / "step-0000000003.left-2")).num_update == 3


PHASE = """
import os, signal, sys
import shutil
import partial_fc.checkpoint.manager as place
from checkpoint_files import write_checkpoint
module, name, count = sys.argv[2:]
module = {"os": os, "shutil": shutil}[module]
function, calls = getattr(module, name), [0]
def killed(*arguments, **named):
    calls[0] += 1
    if calls[0] == int(count):
        os.kill(os.getpid(), signal.SIGKILL)
    return function(*arguments, **named)
setattr(module, name, killed)
folder = place.CheckpointFolder(sys.argv[1], kept=1)
write_checkpoint(folder.path, 2, seed=1)
folder.prune()
"""


@pytest.mark.parametrize(
    "module, name, count, complete",
    [
        ("os", "makedirs", 1, [1]),
        ("os", "write", 1, [1]),  # into the first file
        ("os", "fsync", 3, [1]),
        ("os", "write", 9, [1]),
        ("os", "replace", 1, [1]),  # the manifest gets its name
        ("os", "rename", 1, [1]),  # the folder gets its name
        ("os", "rename", 2, [2, 1]),  # the old one loses its own
        ("shutil", "rmtree", 1, [2]),
        ("os", "unlink", 1, [2]),
        ("os", "unlink", 3, [2]),  # half of the old one is removed
        ("os", "rmdir", 1, [2]),
    ],
)
def test_killed_in_each_phase_of_a_save(module, name, count, complete, tmp_path):
    write_checkpoint(tmp_path, 1)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/tests"}
    command = [sys.executable, "-c", PHASE, str(tmp_path), module, name, str(count)]
    assert subprocess.run(command, env=environment).returncode == -9
    folder = CheckpointFolder(str(tmp_path), kept=1)
    assert updates(folder) == complete
    assert check(str(tmp_path)) == 0
    # The next training cleans up and saves the same update again.
    folder.clean()
    folder.set_aside_newer(1)
    write_checkpoint(tmp_path, 2, seed=2)
    folder.prune()
    assert updates(folder) == [2]
    assert all(".left" in name or name == "step-0000000002" for name in os.listdir(tmp_path))


def test_a_folder_that_becomes_a_link_while_files_are_written_is_not_completed(unfinished, tmp_path):
    folder, manifest = unfinished
    victim = tmp_path / "elsewhere" / "step-0000000005"
    (victim / "centers-00009.npy").write_text("mine")  # commit would remove it
    before = {file.name: file.read_bytes() for file in victim.iterdir()}
    path = folder.begin(5)
    os.rename(path, tmp_path / "moved")
    os.symlink(victim, path)
    with pytest.raises(OSError):
        folder.commit(5, manifest)
    assert {file.name: file.read_bytes() for file in victim.iterdir()} == before


@pytest.mark.parametrize("method", ["prune", "clean"])
def test_a_folder_that_becomes_a_link_after_it_was_looked_at_loses_nothing(method, tmp_path, monkeypatch):
    victim = tmp_path / "victim"
    folder = CheckpointFolder(str(tmp_path / "checkpoints"), kept=1)
    for path in (folder.path, victim):
        for update in (1, 2):
            write_checkpoint(path, update)
        (Path(path) / "step-0000000003.writing").mkdir()
    checked = folder._refuse_other_owners

    def check_and_swap():
        checked()
        monkeypatch.undo()
        real_samefile = os.path.samefile

        def samefile(*paths):
            same = real_samefile(*paths)
            os.rename(folder.path, tmp_path / "moved")
            os.symlink(victim, folder.path)
            return same

        monkeypatch.setattr(os.path, "samefile", samefile)

    monkeypatch.setattr(folder, "_refuse_other_owners", check_and_swap)
    getattr(folder, method)()
    names = ["step-0000000001", "step-0000000002", "step-0000000003.writing"]
    assert sorted(os.listdir(victim)) == names
    assert sorted(os.listdir(tmp_path / "moved")) == (names[1:] if method == "prune" else names[:2])
