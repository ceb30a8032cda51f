"""What a training requires of a host, derived from its arguments."""

import os

import pytest

from partial_fc.distributed.preflight import job_requirements
from partial_fc.distributed.preflight.software import TRAINERS
from paths import ROOT

MXNET = TRAINERS["mxnet"]


@pytest.fixture
def clone(tmp_path):
    """A clone with a config.py of its own."""
    for name in (".venv", "partial_fc", "mxnet"):
        (tmp_path / name).symlink_to(ROOT / name)
    for name in (
        "train_memory.py",
        "default.py",
        "config.py",
    ):  # of a link, Python would import what is beside its target
        (tmp_path / name).write_text((ROOT / name).read_text())
    return tmp_path


def test_a_real_set(clone):
    found = job_requirements.read(str(clone), MXNET, ["--dataset", "emore", "data_root=/sets", "val_targets=['lfw']"])
    assert (found.name, found.drawn, found.models) == ("emore", False, str(clone / "models"))
    assert found.needed == ["/sets/emore/train.rec", "/sets/emore/train.idx"]
    assert found.beside == ["/sets/emore/property", "/sets/emore/lfw.bin"]


def test_only_the_demo_is_drawn(clone):
    assert job_requirements.read(str(clone), MXNET, []).drawn
    found = job_requirements.read(str(clone), MXNET, ["rec=/sets/own.rec", "--models-root", "/shared"])
    assert (found.drawn, found.models, found.needed) == (False, "/shared", ["/sets/own.rec", "/sets/own.idx"])


def test_dummy_images_have_no_files(clone):
    found = job_requirements.read(str(clone), MXNET, ["--dataset", "100w"])
    assert (found.needed, found.beside) == ([], [])


def test_settings_of_config_py_apply(clone):
    with open(clone / "config.py", "a") as stream:
        stream.write("config.data_root = '/mine'\nconfig.dataset = 'webface'\n")
    assert job_requirements.read(str(clone), MXNET, []).needed[0] == "/mine/webface/train.rec"


def test_requirements_are_unknown_without_venv_and_with_help(clone):
    assert job_requirements.read(str(clone), MXNET, ["--help"]) is None
    os.unlink(clone / ".venv")
    assert job_requirements.read(str(clone), MXNET, []) is None


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--dataset", "emor"], "unknown dataset 'emor': did you mean 'emore'?"),
        (["--sample_ratio", "1"], "unrecognized arguments: --sample_ratio"),
        (["rec=/sets/own.idx"], "rec is /sets/own.idx, but must be the path of a .rec file"),
        (["kept_mb=3"], "unknown setting 'kept_mb': its name is now 'logits_cache_mb'"),
    ],
)
def test_arguments_that_training_rejects(clone, arguments, message):
    with pytest.raises(ValueError, match="^" + message.replace("?", "[?]")):
        job_requirements.read(str(clone), MXNET, arguments)


def test_a_settings_json_counts_and_a_refused_training_leaves_no_folder(clone):
    (clone / "settings.json").write_text('{"rec": "/sets/own.rec"}')
    found = job_requirements.read(str(clone), MXNET, ["--config", "settings.json"])
    assert found.needed == ["/sets/own.rec", "/sets/own.idx"]
    with pytest.raises(ValueError, match="^batch_size is 0"):
        job_requirements.read(str(clone), MXNET, ["--config", "settings.json", "batch_size=0"])
    assert not (clone / "models").exists()


def test_a_config_with_a_syntax_error(clone):
    (clone / "config.py").write_text("config. = 3\n")
    with pytest.raises(ValueError, match=r"SyntaxError.*config\.py\", line 1"):
        job_requirements.read(str(clone), MXNET, [])
