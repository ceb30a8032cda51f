"""partial-fc export with files of PyTorch, written by this trainer or by arcface_torch."""

import os
import subprocess
import sys

import cv2
import numpy as np
import pytest
import torch

from command_line import exit_code
from partial_fc.data.pairs_bin import write_pairs
from partial_fc.export.model import FaceModel
from partial_fc.export.parity import random_faces
from partial_fc_torch import get_model
from partial_fc_torch.backbones import NETWORKS, network_with
from partial_fc_torch.pixels import normalized
from paths import ROOT


@pytest.mark.parametrize("network", NETWORKS)
def test_the_layers_tell_the_network(network):
    with torch.device("meta"):
        state = get_model(network, num_features=24).state_dict()
    found, embedding_size = network_with({key: tuple(value.shape) for key, value in state.items()}, 112)
    assert embedding_size == 24 and found == network.partition("_dp005")[0].replace("vit_l", "vit_l_dp005_mask_005")


@pytest.mark.parametrize("name, wrap", [("backbone.pth", False), ("checkpoint_gpu_0.pt", True)])
def test_the_file_gives_the_embeddings_of_pytorch(name, wrap, tmp_path, capsys):
    model = get_model("small", num_features=32, image_size=64).eval()
    state = {"state_dict_backbone": model.state_dict()} if wrap else model.state_dict()
    torch.save(state, tmp_path / name)
    images = [cv2.imencode(".png", face)[1].tobytes() for face in random_faces((64, 64), 4)]
    write_pairs(tmp_path / "few.bin", images, [True, False])
    options = ["--image-size", "64", "--pairs", tmp_path / "few.bin"]
    assert exit_code("export", tmp_path, *options) == 0
    assert "the same embeddings" in capsys.readouterr().out
    faces = random_faces((64, 64), 2)
    with torch.no_grad():
        expected = model(normalized(torch.from_numpy(faces).permute(0, 3, 1, 2))).numpy()
    np.testing.assert_allclose(FaceModel.open(tmp_path).embed(faces), expected, rtol=1e-3, atol=1e-4)
    assert exit_code("export", tmp_path / name, *options) == 2
    assert "backbone.onnx already exists: a finished training has written it" in capsys.readouterr().err


def test_the_tools_take_a_state_dict(tmp_path, capsys):
    model = get_model("small", num_features=32).eval()
    torch.save(model.state_dict(), tmp_path / "model.pt")
    faces = random_faces((112, 112), 40)
    write_pairs(
        tmp_path / "few.bin",
        [cv2.imencode(".png", face[:, :, ::-1])[1].tobytes() for face in faces],
        [True, False] * 10,
    )
    with torch.no_grad():
        expected = model(normalized(torch.from_numpy(faces).permute(0, 3, 1, 2))).numpy()
    np.testing.assert_allclose(FaceModel.open(tmp_path).embed(faces), expected, rtol=1e-3, atol=1e-4)
    assert exit_code("verify", "--no-flip", tmp_path / "model.pt", tmp_path / "few.bin") == 0
    shown = float(capsys.readouterr().out.split()[-1])
    assert shown == pytest.approx(np.linalg.norm(expected, axis=1).mean(), rel=1e-3)


def test_another_network_is_refused(tmp_path, capsys):
    torch.save(torch.nn.Linear(2, 2).state_dict(), tmp_path / "model.pt")
    assert exit_code("export", tmp_path / "model.pt") == 2
    assert "model.pt has weight, bias, " in capsys.readouterr().err
    assert not (tmp_path / "backbone.onnx").exists()


@pytest.mark.parametrize("words", ["export model.pt", "plan --network vit_t --trainer torch --classes 100"])
def test_the_trainer_is_found_in_a_clone_that_is_not_installed(words, tmp_path):
    torch.save(get_model("small", num_features=8).state_dict(), tmp_path / "model.pt")
    # Without the .pth files of setup-utils, which -S does not read.
    packages = os.pathsep.join([str(ROOT), *(path for path in sys.path if path.endswith("site-packages"))])
    command = [sys.executable, "-S", "-m", "partial_fc", *words.split()]
    environment = {**os.environ, "PYTHONPATH": packages}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
