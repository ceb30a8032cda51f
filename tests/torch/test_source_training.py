"""Training on a set in every form, also killed and resumed, gives the same bytes; and links in a set."""

import os
import subprocess
import sys

import pytest

from image_forms import draw, write_folders
from partial_fc.distributed.errors import REFUSED
from paths import ROOT


@pytest.mark.slow
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
