"""The folder from which torch.compile imports code is the user's own."""

import os
import tempfile

import pytest

import default
from partial_fc_torch.build import TorchFramework
from partial_fc_torch.code_cache import VARIABLE, use_own_cache


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"torchinductor_{os.geteuid()}"


def test_a_new_folder_is_closed_to_others_and_taken_again(folder):
    for _ in range(2):
        use_own_cache(environment := {})
        assert environment == {VARIABLE: str(folder)} and folder.stat().st_mode & 0o077 == 0


def test_a_training_that_compiles_takes_it(folder, monkeypatch):
    monkeypatch.setenv(VARIABLE, "")
    settings = default.generate_config(changes={"network_options": "compile=True"}, trainer="torch")
    TorchFramework(backend="gloo").require_device(settings)
    assert os.environ[VARIABLE] == str(folder)


def test_a_folder_that_the_user_names_is_taken(folder):
    use_own_cache(environment := {VARIABLE: "own"})
    assert environment == {VARIABLE: "own"} and not folder.exists()


@pytest.mark.parametrize("planted", ["group", "all", "link", "owner"])
def test_what_others_can_write_to_is_refused(planted, folder, monkeypatch):
    folder.mkdir(0o755)
    if planted == "link":
        folder.rename(folder.with_name("other"))
        folder.symlink_to("other")
    elif planted == "owner":
        status = os.stat_result((0o040755, 0, 0, 2, os.geteuid() + 1, 0, 0, 0, 0, 0))
        monkeypatch.setattr(os, "lstat", lambda path: status)
    else:
        folder.chmod(0o775 if planted == "group" else 0o757)
    environment = {}
    with pytest.raises(ValueError, match=f"compile=True would run code from {folder}, .*set {VARIABLE}"):
        use_own_cache(environment)
    assert not environment
