"""The output folder of a training."""

import logging
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext

import pytest

import default
from partial_fc.training.run_folder import (
    BRIEF,
    begin_run,
    check_writable,
    console,
    open_run_folder,
    output_folder,
    prepare_folder,
    wait_for_earlier_attempt,
)
from small_disk import fill, small_disk

OWN = {"num_classes": 9, "num_epoch": 2, "lr_epochs": [1]}


@pytest.mark.parametrize(
    "changes, folder",
    [
        ({}, "models/r50-cosface-demo"),
        ({"models_root": "/shared"}, "/shared/r50-cosface-demo"),
        ({"output": "ms1mv3_arcface_r50"}, "ms1mv3_arcface_r50"),
        ({"output": "/shared/own", "models_root": "/elsewhere"}, "/shared/own"),
        ({"output": "models/own/"}, "models/own"),  # as completed by a shell
        ({"rec": "/sets/mine", **OWN}, "models/r50-cosface-mine"),
        ({"data_name": "faces", **OWN}, "models/r50-cosface-faces"),
        ({"loss": "own", "margin": "own.margins:Softer"}, "models/r50-Softer-demo"),
    ],
)
def test_the_output_folder(changes, folder):
    settings = default.generate_config(None, None, "r50", {"loss": "cosface", **changes}, trainer="torch")
    assert output_folder(settings) == os.path.abspath(folder)


@contextmanager
def open_folder(folder, keep=False):
    with console(0), open_run_folder(str(folder), 0, keep) as opened:
        yield opened


def test_handlers_that_logging_installs_by_itself_are_removed(monkeypatch, capsys):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    logging.warning("early")
    for rank, stream in ((0, "out"), (1, "err")):
        with console(rank):
            logging.warning("late")
        lines = capsys.readouterr()
        assert (lines.out + lines.err).count("late") == getattr(lines, stream).count("late") == 1


def test_a_terminal_shows_the_brief_form_of_a_line(tmp_path, monkeypatch, capsys):
    for is_terminal, shown in ((True, "step 5"), (False, "the long line")):
        monkeypatch.setattr("sys.stdout.isatty", lambda is_terminal=is_terminal: is_terminal)
        with open_folder(tmp_path, keep=True):
            logging.info("the long line", extra={BRIEF: "step 5"})
            logging.info("another")
        assert re.sub(r"Training: \S+ \S+?-", "", capsys.readouterr().out).splitlines() == [shown, "another"]
    assert "step 5" not in (tmp_path / "training.log").read_text()


def test_one_of_two_concurrent_trainings_is_refused(tmp_path):
    with open_folder(tmp_path):
        with pytest.raises(OSError, match="another"), open_run_folder(str(tmp_path), 0, False, is_new=True):
            pass  # both have found no folder
        assert {path.name for path in tmp_path.iterdir()} == {".lock", ".training.log"}
        with pytest.raises(OSError, match=f"another training is writing to {tmp_path}: wait until it ends"):
            open_folder(tmp_path).__enter__()
    with ThreadPoolExecutor() as threads, open_folder(tmp_path):  # the refused one holds nothing
        restart = threads.submit(wait_for_earlier_attempt, str(tmp_path))
        time.sleep(0.3)
        assert not restart.done()
    restart.result(10)


def test_a_log_on_a_full_disk_is_named_once_and_does_not_end_the_training(tmp_path, capsys):
    with small_disk(tmp_path / "disk", "64k") as disk, open_folder(disk, keep=True):
        fill(disk)
        for update in range(300):
            logging.info("update %d: %s", update, "long" * 10)
        (disk / "large").unlink()
        logging.info("there is room again")
        (warning,) = capsys.readouterr().err.splitlines()
        assert str(disk / "training.log") in warning and "No space left on device" in warning
        assert "there is room again" in (disk / "training.log").read_text()


def test_log_lines_escape_control_characters_and_invalid_utf_8(tmp_path, capsys):
    record = logging.makeLogRecord({"msg": f"bad image \x1b[2J{os.fsdecode(bytes([255]))}.jpg"})
    before = set(logging.getLogger().handlers)
    with open_folder(tmp_path, keep=True):
        for handler in set(logging.getLogger().handlers) - before:  # not pytest's, which writes UTF-8
            handler.handle(record)
    line = (tmp_path / "training.log").read_text()
    assert line.endswith("-bad image \\x1b[2J\\udcff.jpg\n") and capsys.readouterr().out == line


def test_planted_links_are_not_followed(tmp_path):
    victim, folder = tmp_path / "victim", tmp_path / "out"
    victim.write_text("precious")
    folder.mkdir()
    for name in (".lock", "training.log"):
        (folder / name).symlink_to(victim)
        with pytest.raises(OSError, match=f"Too many levels of symbolic links: .*{name}"):
            open_folder(folder, keep=True).__enter__()
        (folder / name).unlink()
    (folder / ".0_probe").symlink_to(victim)  # the name of earlier versions
    check_writable(str(folder), 0)
    assert victim.read_text() == "precious" and sorted(os.listdir(folder)) == [".0_probe", ".lock"]


@pytest.fixture
def folder(tmp_path):
    """An output folder with a file."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "backbone.pth").touch()
    return tmp_path / "out"


def train(folder, begins=True, keep=False):
    """Uses the folder as a training does, which logs a line and may end without having begun."""
    prepare_folder(str(folder), keep, [])
    with open_folder(folder, keep) as opened:
        logging.warning("begins %s", begins)
        if begins:
            begin_run(str(folder), "", opened.earlier)
            os.makedirs(folder / "tensorboard", exist_ok=True)
            (folder / "tensorboard" / "events.own").touch()


def content(folder):
    found = (path.relative_to(folder) for path in folder.rglob("*") if not path.is_dir() or not any(path.iterdir()))
    return sorted(str(path) for path in found)


@pytest.mark.parametrize("trace", ["training.log", ".run", "checkpoints"])
def test_an_earlier_training_moves_into_a_subfolder(folder, trace):
    """Also one without its log: a new training would remove its own checkpoints as older than those in the folder."""
    (folder / trace).mkdir() if trace == "checkpoints" else (folder / trace).touch()
    os.utime(folder / trace, (0, 0))
    (folder / "tensorboard").mkdir()
    (folder / "tensorboard" / "events.before").touch()
    before = content(folder)
    train(folder, begins=False)  # an attempt that is refused or killed, twice
    train(folder, begins=False)
    assert set(content(folder)) - set(before) == {".lock", ".training.log"}
    train(folder)
    (earlier,) = folder.glob("earlier-*")
    assert earlier.name == time.strftime("earlier-%Y%m%d-%H%M%S", time.localtime(0))
    assert content(earlier) == before
    own = {".lock", ".run", "tensorboard/events.own", "training.log"}
    assert {name for name in content(folder) if not name.startswith("earlier-")} == own
    train(folder, keep=True)
    words = [line.split()[-1] for line in (folder / "training.log").read_text().splitlines() if "begins" in line]
    assert words == ["False", "False", "True", "True"]


@pytest.mark.parametrize("mounted", [False, True])
def test_a_link_and_a_mounted_disk_stay(mounted, tmp_path):
    with small_disk(tmp_path / "disk", "1m") if mounted else nullcontext(tmp_path) as disk:
        folder = disk if mounted else tmp_path / "link"
        if not mounted:
            (tmp_path / "disk").mkdir()
            folder.symlink_to(tmp_path / "disk")
        for _ in range(3):  # two of them end in the same second
            train(folder)
        assert folder.is_mount() if mounted else folder.is_symlink()
        assert len(list((tmp_path / "disk").glob("earlier-*/training.log"))) == 2


def test_an_interrupted_move_is_finished(folder, monkeypatch):
    (folder / "training.log").touch()
    moved = []

    def move(source, target, **place):
        moved.append(source)
        if len(moved) == 2:
            raise OSError("ends here")
        rename(source, target, **place)

    rename = os.rename
    monkeypatch.setattr(os, "rename", move)
    with pytest.raises(OSError, match="ends here"):
        train(folder)
    train(folder)
    (earlier,) = folder.glob("earlier-*")
    assert {"backbone.pth", "training.log"} <= set(content(earlier)) and not (folder / "backbone.pth").exists()


def test_a_folder_with_other_files_is_refused(folder):
    with pytest.raises(ValueError, match="other files .backbone.pth"):
        prepare_folder(str(folder), False, [])
    assert [path.name for path in folder.iterdir()] == ["backbone.pth"]
    (folder / "backbone.pth").unlink()
    (folder / "lost+found").mkdir()
    train(folder, begins=False)  # as one that was refused
    for _ in range(2):
        train(folder)
    assert (folder / "lost+found").is_dir() and not list(folder.glob("earlier-*/lost+found"))


@pytest.mark.parametrize("given", ["out", "out/", "out/backbone.pth", "link/backbone.pth", "out/map/../backbone.pth"])
def test_inputs_of_the_training_are_not_moved(folder, given, monkeypatch):
    monkeypatch.chdir(folder.parent)
    (folder / "map").mkdir()
    (folder.parent / "link").symlink_to(folder)
    (folder.parent / "out2").mkdir()
    (folder / "training.log").touch()
    with pytest.raises(ValueError, match=f"{given} is in the output folder"):
        prepare_folder("out", False, ["out2", given])
    prepare_folder("out", False, ["out2", "out/earlier-20260101-000000/backbone.pth"])
    prepare_folder("out", True, [given])
    assert (folder / "backbone.pth").exists()
