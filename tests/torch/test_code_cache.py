"""The folder from which torch.compile imports code is private to the user."""

import os
import tempfile

import pytest

import default
from partial_fc_torch.build import TorchFramework
from partial_fc_torch.code_cache import VARIABLE, use_private_cache


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"torchinductor_{os.geteuid()}"


def test_a_training_that_compiles_uses_a_private_folder(folder, monkeypatch):
    settings = default.generate_config(changes={"network_options": "compile=True"}, trainer="torch")
    for _ in range(2):
        monkeypatch.setenv(VARIABLE, "")
        TorchFramework(backend="gloo").require_device(settings)
        assert os.environ[VARIABLE] == str(folder) and folder.stat().st_mode & 0o077 == 0


def test_a_folder_that_the_user_names_is_used(folder):
    use_private_cache(environment := {VARIABLE: "mine"})
    assert environment == {VARIABLE: "mine"} and not folder.exists()


@pytest.mark.parametrize("planted", ["group", "all", "link", "owner"])
def test_a_folder_that_others_can_write_to_is_refused(planted, folder, monkeypatch):
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
    with pytest.raises(ValueError, match=f"{folder}.*set {VARIABLE}"):
        use_private_cache(environment)
    assert not environment
