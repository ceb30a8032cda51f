"""All functions that write refuse folders that other users can write to, and follow no planted links."""

import ast
import json
import os
import subprocess
import sys
from contextlib import suppress

import numpy as np
import pytest
from test_layout import sources

from checkpoint_files import write_checkpoint
from command_line import exit_code
from damage import check_damaged
from partial_fc.checkpoint import CheckpointFolder
from partial_fc.checkpoint.arrays import writable_array
from partial_fc.data.face_records import write_face_set
from partial_fc.data.stamped_words import read_words, write_words
from partial_fc.training.report.curves_json import read_runs
from partial_fc.training.report.drawing import write_png
from partial_fc.training.run_folder import begin_run, begun_by, check_writable, open_run_folder, prepare_folder
from partial_fc.training.trackers import Trackers
from partial_fc.training.trackers.jsonl import JsonLines
from partial_fc.training.trackers.tensorboard import TensorBoard
from partial_fc.training.trackers.tracker import TrackedRun
from partial_fc.utils.shared_folders import make_folder, refuse_writable_by_others, resolved
from partial_fc.utils.staging import MARKER, staged_files, staged_folder
from partial_fc_tools.cleaning.stored import working_folder
from partial_fc_tools.index.folder import changing
from partial_fc_tools.inference.index import Index, write_index
from partial_fc_tools.inference.origin import Origin
from paths import ROOT


def files(folder):
    with staged_files(folder, ["result"], True) as stage:
        open(os.path.join(stage, "result"), "w").close()


def tree(folder):
    with staged_folder(folder / "tree") as stage:
        open(os.path.join(stage, "a"), "w").close()


def work(folder):
    with working_folder(str(folder)):
        pass


def checkpoints(folder):
    return CheckpointFolder(str(folder), kept=1)


def run_of(folder, first_update=0):
    return TrackedRun(str(folder), "1234abcd", {}, first_update)


DRAWN = [files, tree]  # write to random names, so the sticky bit is enough
KNOWN = {  # write to known names
    "training": lambda folder: prepare_folder(str(folder), False, []),
    "rank": lambda folder: check_writable(str(folder), 1),
    "sets clean": work,
    **{name: lambda folder, name=name: getattr(checkpoints(folder), name)() for name in ("clean", "prune")},
    **{name: lambda folder, name=name: getattr(checkpoints(folder), name)(9) for name in ("begin", "set_aside_newer")},
    "tensorboard": lambda folder: TensorBoard(lambda path, update: None).begin(run_of(folder.parent)),
}


@pytest.mark.parametrize("door", [*DRAWN, *KNOWN.values()], ids=[*(door.__name__ for door in DRAWN), *KNOWN])
@pytest.mark.parametrize(
    "above, mode, refused",
    [
        (0o755, 0o755, False),
        (0o2775, 0o2775, False),  # shared by a group
        (0o1777, 0o755, False),  # in /tmp
        (0o777, 0o755, True),  # another user can replace the folder
        (0o755, 0o777, True),
        (0o755, 0o1777, "known"),
    ],
)
def test_all_writers_refuse_folders_that_others_can_replace(tmp_path, door, above, mode, refused):
    folder = tmp_path / "above" / "tensorboard"
    folder.mkdir(parents=True)
    folder.parent.chmod(above)
    folder.chmod(mode)
    if refused is True or (refused and door not in DRAWN):
        with pytest.raises(PermissionError, match="chmod o-w") as error:
            door(folder)
        assert "\n" not in str(error.value) and os.listdir(folder) == []
    else:
        door(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files to another user")
def test_what_another_user_has_made_is_refused(tmp_path):
    """A folder in /tmp, unless it is only read; and a link `checkpoints`, unless the output folder is also his."""
    (tmp_path / "tmp" / "his").mkdir(parents=True)
    os.chown(tmp_path / "tmp" / "his", 4321, 4321)
    refuse_writable_by_others(tmp_path / "tmp" / "his")
    (tmp_path / "tmp").chmod(0o1777)
    with pytest.raises(PermissionError, match="another user"):
        refuse_writable_by_others(tmp_path / "tmp" / "his")
    refuse_writable_by_others(tmp_path / "tmp" / "his", read_only=True)
    (tmp_path / "tmp" / "his" / "models" / "run").mkdir(parents=True)
    for uid in (4321, 0):  # as models_root=/tmp/his/models has it
        os.chown(tmp_path / "tmp" / "his" / "models", uid, uid)
        with pytest.raises(PermissionError, match="his belongs to another user"):
            refuse_writable_by_others(tmp_path / "tmp" / "his" / "models" / "run")
    os.chown(tmp_path / "tmp" / "his" / "models", 4321, os.getegid())  # of the group, in a folder of a member
    refuse_writable_by_others(tmp_path / "tmp" / "his" / "models" / "run")
    os.chown(tmp_path / "tmp" / "his", 4321, os.getegid())  # shared with this user's group
    refuse_writable_by_others(tmp_path / "tmp" / "his")
    (tmp_path / "out").mkdir()
    other, link = tmp_path / "other", tmp_path / "out" / "checkpoints"
    for number in (1, 2):
        write_checkpoint(other, number)
    link.symlink_to(other)
    os.chown(link, 4321, 4321, follow_symlinks=False)
    for method in ("prune", "clean"):
        with pytest.raises(PermissionError, match=f"{link} is a link"):
            getattr(checkpoints(link), method)()
    assert len(os.listdir(other)) == 2
    os.chown(link, 0, 0, follow_symlinks=False)  # to a disk of the user's choice
    checkpoints(link).prune()
    os.chown(link, 4321, 4321, follow_symlinks=False)
    os.chown(tmp_path / "out", 4321, 4321)
    checkpoints(link).begin(3)
    assert sorted(os.listdir(other)) == ["step-0000000002", "step-0000000003.writing"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give links to another user")
@pytest.mark.parametrize("name", ["link", "link/deeper", "mine", "relative/link", "../tmp/link/new"])
@pytest.mark.parametrize("mode", [0o1777, 0o777, 0o1775])
def test_a_link_that_another_user_has_made_in_a_folder_of_all_is_refused(tmp_path, monkeypatch, name, mode):
    """At any position in a path, also behind a link of this user."""
    tmp, elsewhere = tmp_path / "tmp", tmp_path / "elsewhere"
    for folder in (tmp, elsewhere / "deeper", tmp_path / "private"):
        folder.mkdir(parents=True)
    for link, target, uid in (
        (tmp / "link", "../elsewhere", 4321),
        (tmp / "mine", "/".join([str(tmp), "link"]), 0),
        (tmp / "relative", ".", 0),
        (tmp / "chosen", "../elsewhere", 0),
        (tmp_path / "private" / "link", "../elsewhere", 4321),  # the owner of the folder is responsible
    ):
        link.symlink_to(target)
        os.lchown(link, uid, uid)
    tmp.chmod(mode)
    monkeypatch.chdir(tmp)
    doors = [KNOWN["training"], work, *DRAWN, lambda folder: refuse_writable_by_others(folder, read_only=True)]
    if mode & 0o002:
        for door in doors:
            with pytest.raises(PermissionError, match=f"{tmp}/link is a link that another user .uid 4321. has made"):
                door(tmp / name)
            assert sorted(map(str, elsewhere.rglob("*"))) == [str(elsewhere / "deeper")]
    else:
        make_folder(tmp / name)
    for path in (tmp / "chosen", tmp_path / "private" / "link"):
        if mode & 0o1000:
            make_folder(path)
    os.lchown(tmp, 4321, 4321)
    if mode & 0o1000:
        make_folder(tmp / "link")  # of the owner of the folder


def test_paths_are_resolved_like_realpath(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a" / "b").mkdir(parents=True)
    for link, target in (("c", "a/b/../../a/b"), ("a/d", "../c/.."), ("e", str(tmp_path / "a" / "d"))):
        os.symlink(target, link)
    for path in ("c", "a/d/b/..", "e//./b", "e/new/deeper", ".", "/", "../../../../../../../..", "c/../../c"):
        assert resolved(path) == os.path.realpath(path), path
    os.symlink("loop", "loop")
    with pytest.raises(OSError, match="symbolic links"):
        resolved("loop/a")


def test_an_index_that_all_users_can_write_to_is_neither_read_nor_changed(tmp_path):
    pytest.importorskip("faiss", reason="pip install faiss-cpu")
    origin, rows = Origin("0" * 64, True), np.eye(4, dtype=np.float32)
    write_index(str(tmp_path / "a"), Index(rows[:2], ["a", "b"]), origin)
    write_index(str(tmp_path / "b"), Index(rows[2:], ["c", "d"]), origin)
    folder, victim = tmp_path / "index", tmp_path / "victim"
    victim.write_text("precious")
    assert exit_code("index", "build", tmp_path / "a", "--out", folder) == 0
    (folder / "names-2.txt").symlink_to(victim)
    (folder / "lists-2.faiss").symlink_to(victim)
    before = sorted(os.listdir(folder))
    for mode in (0o777, 0o1777):
        folder.chmod(mode)
        for words in (("add", folder, tmp_path / "b"), ("check", folder)):
            assert exit_code("index", *words) == 2
    assert sorted(os.listdir(folder)) == before
    folder.chmod(0o775)
    assert exit_code("index", "add", folder, tmp_path / "b") == 0  # old links are removed, not followed
    assert victim.read_text() == "precious" and not (folder / "names-2.txt").is_symlink()


@pytest.mark.parametrize("name", ["names-2.txt", "names-2.npy", "lists-2.faiss", "checksums-2.npy", "added-2.npy"])
def test_a_link_that_is_planted_during_a_change_of_an_index_is_not_written_through(tmp_path, name):
    """Another member of the folder's group knows which files the command writes next."""
    pytest.importorskip("faiss", reason="pip install faiss-cpu")
    folder, victim, rows = tmp_path / "index", tmp_path / "victim", np.eye(4, dtype=np.float32)
    victim.write_text("precious")
    write_index(str(tmp_path / "a"), Index(rows[:2], ["a", "b"]), Origin("0" * 64, True))
    assert exit_code("index", "build", tmp_path / "a", "--out", folder) == 0
    with pytest.raises(OSError, match="File exists"), changing(str(folder)) as index:
        (folder / name).symlink_to(victim)
        lists = index.writer()
        lists.add(2, rows[2:].__getitem__, 2)
        index.write(lists, ["c", "d"])
    assert victim.read_text() == "precious"
    assert exit_code("index", "check", folder) == 0


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def test_an_earlier_training_is_not_moved_through_a_link_of_the_last_moment(folder, monkeypatch):
    clone = folder.parent / "clone"
    clone.mkdir()
    (folder / "training.log").write_text("planted")
    monkeypatch.setattr(os, "makedirs", lambda path, exist_ok: os.symlink(clone, path))
    with open_run_folder(str(folder), 0, False) as opened, pytest.raises(OSError, match="earlier-"):
        begin_run(str(folder), "a", opened.earlier)
    assert os.listdir(clone) == []


@pytest.mark.parametrize("time", [0, -(2**40), 2**45, 1e9])
def test_an_earlier_training_is_not_moved_through_a_link(folder, time):
    clone = folder.parent / "clone"
    clone.mkdir()
    (clone / "config.py").write_text("precious")
    for name in ("training.log", "config.py"):
        (folder / name).write_text("planted")
    with suppress(OSError):  # a file system may not have such times
        os.utime(folder / "training.log", (time, time))
    with open_run_folder(str(folder), 0, False) as opened:
        begin_run(str(folder), "a", opened.earlier)
    (earlier,) = folder.glob("earlier-*")
    for name in ("training.log", "config.py"):
        os.rename(earlier / name, folder / name)
    os.rename(earlier, folder / "moved")
    earlier.symlink_to(clone)
    with open_run_folder(str(folder), 0, False) as opened:
        begin_run(str(folder), "b", opened.earlier)
    assert os.listdir(clone) == ["config.py"] and (clone / "config.py").read_text() == "precious"
    assert (folder / f"{earlier.name}-2" / "config.py").read_text() == "planted"


@pytest.mark.parametrize(
    "name, write",
    [
        ("curves.png", lambda path: write_png(str(path), "title", [])),
        ("metrics.jsonl", lambda path: JsonLines().begin(run_of(path.parent))),
        ("property", lambda path: write_face_set(path.parent, [[b"image"]])),
        ("images.npy", lambda path: writable_array(str(path), (4, 2), np.float16, is_new=True)),
        ("rows.npy", lambda path: writable_array(str(path), (4, 2), np.float16, is_new=False)),
    ],
)
def test_links_are_not_written_through(folder, name, write):
    victim = folder.parent / "victim"
    victim.write_text("precious")
    (folder / name).symlink_to(victim)
    with suppress(OSError):
        write(folder / name)
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("plant", [lambda path: path.symlink_to("/dev/zero"), os.mkfifo])
def test_special_files_are_not_read(folder, plant):
    for name in ("run_id", ".run", "curves.json", "settings.json", "words", "tree"):
        plant(folder / name) if name != "tree" else (folder / name).mkdir()
    plant(folder / "tree" / MARKER)
    assert not begun_by(str(folder), "abc")
    with pytest.raises(OSError, match="not a regular file"):
        Trackers({}).begin(str(folder), {})
    with pytest.raises(OSError, match="not a regular file"):
        read_runs([str(folder)])
    write_words(str(folder / "words"), np.ones(3, "<i8"), np.ones(3, "<i8"))
    assert read_words(str(folder / "words"), np.ones(3, "<i8")) is None
    with staged_folder(folder / "tree", force=True):
        pass


@pytest.mark.parametrize(
    "name, content, read",
    [
        ("run_id", b"1234abcd", lambda folder: Trackers({}).begin(folder, {})),
        ("curves.json", None, lambda folder: read_runs([folder])),
        ("settings.json", b'{"lr": 1, "network": "r50"}', lambda folder: read_runs([folder])),
    ],
)
def test_damaged_files_of_a_run_are_named(folder, name, content, read):
    summary = {"updates": 1, "ranks": 1, "seconds": 1, "final_loss": 1, "samples_per_second": None, "versions": {}}
    point = {"num_update": 1, "accuracy": 0.5, "far": 0.1, "tar_at_far": 0.5}
    series = {key: [[1, 2.5]] for key in ("losses", "speeds", "waiting", "learning_rates")}
    curves = json.dumps({"summary": summary, **series, "sets": {"lfw": [point]}}).encode()
    (folder / "settings.json").write_bytes(b"{}")
    (folder / "curves.json").write_bytes(curves)
    check_damaged(folder / name, content or curves, lambda path: read(str(folder)))


WRITERS = {"np.save", "np.savez", "torch.save", "onnx.save", "shutil.copy", "shutil.copyfile", "shutil.move"}
METHODS = {"open_memmap", "savefig", "touch", "write_bytes", "write_text"}
WRITING = {  # modules that may write by path, and where their folder comes from
    **dict.fromkeys(
        (
            *("partial_fc.data.names", "partial_fc.data.synthetic.writer", "partial_fc.utils.staging"),
            *(
                f"partial_fc_tools.{name}"
                for name in ("checkpoints.map", "clusters.command", "export.command", "export.hub", "inference.index")
            ),
            *(f"partial_fc_tools.cleaning.{name}" for name in ("new_set", "page")),
            *(f"partial_fc_tools.ijb.{name}" for name in ("report", "synthetic")),
            *(f"partial_fc_tools.report.{name}" for name in ("card", "compare")),
            *(f"partial_fc_tools.sets.{name}" for name in ("align", "face_tree", "sheet", "unpack")),
            *(f"partial_fc_tools.verify.{name}" for name in ("command", "roc_picture")),
        ),
        "a stage",
    ),
    "partial_fc_tools.cleaning.stored": "TemporaryDirectory",
    "partial_fc_tools.hosts.command": "random names",
    "partial_fc_tools.export.smaller": "TemporaryDirectory",
}


def test_other_modules_write_by_replacing_or_without_following_links():
    """All other modules must use replacing, replace_file, a stage or make_folder."""
    found = {name for name, path in sources() if any(map(_names_what_it_writes, ast.walk(ast.parse(path.read_text()))))}
    assert found == WRITING.keys()


def _names_what_it_writes(node):
    """Whether a call writes to a path and follows links."""
    if not isinstance(node, ast.Call) or any(ast.unparse(value) in ("file", "content") for value in node.args):
        return False
    name, words = ast.unparse(node.func), {word.arg: word.value for word in node.keywords}
    modes = [value.value for value in (*node.args[1:2], words.get("mode")) if isinstance(value, ast.Constant)]
    if modes == ["r"]:
        return False
    opens = name == "open" and "opener" not in words and any(set("wax+") & set(mode) for mode in modes)
    return opens or name in WRITERS or name.rpartition(".")[2] in METHODS


def test_what_a_command_makes_cannot_be_written_by_others(tmp_path):
    """With any umask. Otherwise the command would refuse its own folders."""
    folder = tmp_path / "above" / "set"
    words = f"{sys.executable} -m partial_fc_tools.ijb.synthetic {folder} --subjects 4"
    subprocess.run(["sh", "-c", f"umask 0; {words}"], cwd=ROOT, check=True, timeout=120)
    refuse_writable_by_others(folder)
