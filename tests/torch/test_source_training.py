"""Trainings on one set in every form, also killed and resumed, give the same bytes; a set with links."""

import json
import os
import subprocess
import sys

import pytest

from image_forms import COUNTS, draw, write_folders
from partial_fc.distributed.errors import REFUSED
from paths import ROOT


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_trained_bytes_are_those_of_train_rec_also_killed_and_resumed(tmp_path):
    pytest.importorskip("datasets")
    command = [sys.executable, "tests/every_form.py", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr[-2000:]


def test_links_out_of_a_set_are_followed_if_a_setting_says_so(tmp_path):
    faces = tmp_path / "set"
    write_folders(faces, draw())
    for name in ("000/000.png", "001"):
        target = tmp_path / name.replace("/", "-")
        os.rename(faces / name, target)
        os.symlink(target, faces / name)
    words = f"train rec={faces} dataset=demo image_size=16 num_classes=6 embedding_size=16 batch_size=8 max_update=3"
    words += " lr_steps=[] verify_every=9 val_targets=[] baselines=False decode_processes=1"
    jobs = f"1 {words} output={tmp_path}/trained follow_links=True -- 1 {words} output={tmp_path}/refused"
    command = [sys.executable, "tests/in_turn.py", *jobs.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (tmp_path / "trained" / "backbone.pth").exists(), done.stderr
    error, ended = done.stderr.splitlines()
    assert f"it is outside of {faces}: " in error and "follow_links=True" in error
    assert f"/refused ended with [{REFUSED}]" in ended


def test_a_set_alone_is_enough_and_its_errors_leave_no_folder(tmp_path):
    faces, bad = tmp_path / "set", tmp_path / "bad"
    write_folders(faces, draw())
    write_folders(bad, draw())
    (bad / "003" / "001.png").write_bytes(b"damaged")
    (faces / "val.bin").write_bytes(b"damaged")
    words = "image_size=16 embedding_size=16 batch_size=8"
    jobs = f"2 train rec={faces} {words} output={tmp_path}/trained -- 1 train rec={bad} {words} output={tmp_path}/a"
    of_val = f"2 train rec={faces} val_targets=val {words} output={tmp_path}/b"
    commands = [[sys.executable, "tests/in_turn.py", *each.split()] for each in (jobs, of_val)]
    done, val = (subprocess.run(each, cwd=ROOT, capture_output=True, text=True, timeout=120) for each in commands)
    settings = json.loads((tmp_path / "trained" / "settings.json").read_text())
    assert [settings[name] for name in ("num_classes", "num_epoch", "schedule")] == [6, 20, "cosine"], done.stderr
    assert settings["max_update"] == 20 * (sum(COUNTS) // 16)
    assert "num_classes 6, as many as in the set" in done.stdout
    assert "bad/003/001.png" in done.stderr and "val.bin is not a file of validation pairs" in val.stderr
    assert f"/a ended with [{REFUSED}]" in done.stderr and val.returncode == REFUSED
    assert not (tmp_path / "a").exists() and not (tmp_path / "b").exists()
