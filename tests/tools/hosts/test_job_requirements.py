"""What a training requires of a host, derived from its arguments."""

import os
import sys

import pytest

from partial_fc_tools.hosts import job_requirements
from partial_fc_tools.hosts.job_requirements import TRAINERS, Training
from paths import ROOT

MXNET = TRAINERS["mxnet"]


@pytest.fixture
def clone(tmp_path):
    """A clone with a config.py of its own; its environment is the one of this test."""
    for name in ("partial_fc", "mxnet"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    for name in ("train_memory.py", "default.py", "config.py"):  # of a link, Python would import what is beside it
        (tmp_path / name).write_text((ROOT / name).read_text())
    return tmp_path


def test_a_real_set_and_the_folder_of_checkpoints(clone):
    arguments = ["--dataset", "emore", "data_root=/sets", "val_targets=['lfw']"]
    files = ["/sets/emore/train.rec", "/sets/emore/train.idx"], ["/sets/emore/property", "/sets/emore/lfw.bin"]
    assert job_requirements.read(str(clone), MXNET, arguments) == Training(*files, os.path.abspath("models"))
    found = job_requirements.read(str(clone), MXNET, [*arguments, "checkpoint_every=0"])
    assert found == Training(*files, "")
    assert not (clone / "models").exists()


@pytest.mark.parametrize("arguments", [[], ["--dataset", "100w"]], ids=["the demo", "dummy images"])
def test_images_that_each_host_draws_need_no_files(clone, arguments):
    found = job_requirements.read(str(clone), MXNET, arguments)
    assert (found.needed, found.optional) == ((), ())


def test_the_files_of_sets_in_other_forms_are_not_compared(clone, tmp_path):
    (tmp_path / "faces" / "a").mkdir(parents=True)
    for words in ([f"rec={tmp_path / 'faces'}"], ["rec=hf:faces"], [f"data_root={tmp_path}", "data_name=faces"]):
        found = job_requirements.read(str(clone), MXNET, ["--dataset", "emore", *words])
        assert (found.needed, found.optional) == ((), ())


def test_nothing_is_required_without_venv_and_with_help(clone):
    assert job_requirements.read(str(clone), MXNET, ["--help"]) == Training()
    os.unlink(clone / ".venv")
    assert job_requirements.read(str(clone), MXNET, []) == Training()


def test_errors_of_the_training_are_passed_on(clone):
    with pytest.raises(ValueError, match="^unknown setting 'sampel_ratio'"):
        job_requirements.read(str(clone), MXNET, ["--sampel_ratio", "1"])
    (clone / "config.py").write_text("config. = 3\n")
    with pytest.raises(ValueError, match=r"SyntaxError.*config\.py, line 1"):
        job_requirements.read(str(clone), MXNET, [])
