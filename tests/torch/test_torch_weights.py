"""Weights from every kind of file, and what is said of files that do not fit."""

import numpy as np
import pytest
import torch
from test_mxnet_weights import RECORDED, embed, mxnet_weights
from torch import nn

from partial_fc.checkpoint import CheckpointFolder, Manifest, array_chunks, npz_chunks, write_file
from partial_fc.checkpoint.mxnet_params import array_file_chunks
from partial_fc.utils.atomic_io import replace_file
from partial_fc_torch.backbones import get_model
from partial_fc_torch.weights import load_weights, read_weights, weights_from_arrays


def small(seed=0, **options):
    torch.manual_seed(seed)
    return get_model("small", num_features=8, **options)


def same(model, other):
    state = other.state_dict()
    return all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("name", ["backbone.pth", "model.pt"])
@pytest.mark.parametrize("of_folder", [False, True])
def test_a_state_dict_of_pytorch(tmp_path, name, of_folder):
    saved, model = small(), small(seed=1)
    torch.save(saved.state_dict(), tmp_path / name)
    load_weights(model, read_weights(str(tmp_path if of_folder else tmp_path / name), "small"))
    assert same(model, saved) and model.eps == 1e-5


@pytest.mark.parametrize("of_folder", [False, True])
def test_params_of_mxnet(tmp_path, of_folder):
    model = small()
    path = tmp_path / "model-0000.params"
    replace_file(str(path), array_file_chunks(mxnet_weights("small", model)))
    load_weights(model, read_weights(str(tmp_path if of_folder else path), "small"))
    np.testing.assert_allclose(embed(model), RECORDED["small"], rtol=0, atol=1e-5)
    assert model.eps == 2e-5


def write_checkpoint(folder, parameters, statistics):
    """A complete checkpoint of one rank; returns its path."""
    checkpoints = CheckpointFolder(str(folder), kept=1)
    path = checkpoints.begin(5)
    no_rows = [np.empty((0, 8), np.float32)]
    chunks = {"backbone.npz": npz_chunks(parameters), "rank-00000.npz": npz_chunks(statistics)}
    chunks.update({name: array_chunks(no_rows) for name in ("centers-00000.npy", "momentum-00000.npy")})
    files = {name: write_file(f"{path}/{name}", chunks) for name, chunks in chunks.items()}
    return checkpoints.commit(5, Manifest(5, 0, 8, 1, [(0, 0)], files, {}, [{}], {}))


def test_a_checkpoint_of_mxnet(tmp_path):
    model = small()
    arrays = mxnet_weights("small", model)
    parameters = {name: array for name, array in arrays.items() if name.startswith("arg:")}
    parameters["state:conv0_weight:"] = np.zeros(3, np.float32)
    path = write_checkpoint(tmp_path, parameters, {name: arrays[name] for name in arrays.keys() - parameters.keys()})
    load_weights(model, read_weights(path, "small"))
    np.testing.assert_allclose(embed(model), RECORDED["small"], rtol=0, atol=1e-5)
    assert model.eps == 2e-5
    with open(f"{path}/rank-00000.npz", "r+b") as file:
        file.seek(200)
        file.write(b"damaged")
    with pytest.raises(ValueError, match="rank-00000.npz is damaged"):
        read_weights(path, "small")


def test_a_checkpoint_of_this_trainer_keeps_its_epsilon(tmp_path):
    saved, model = small(eps=2e-5), small(seed=1)
    state = {key: value.detach().numpy() for key, value in saved.state_dict().items()}
    parameters = {f"arg:{key}": state[key] for key, _ in saved.named_parameters()}
    statistics = {f"aux:{key}": value for key, value in state.items() if key.endswith(("mean", "var"))}
    path = write_checkpoint(tmp_path, {**parameters, "eps": np.float64(saved.eps)}, statistics)
    load_weights(model, read_weights(path, "small"))
    assert same(model, saved) and model.eps == 2e-5


def test_weights_of_a_module_of_a_user(tmp_path):
    saved, model = nn.Linear(3, 2), nn.Linear(3, 2)
    torch.save(saved.state_dict(), tmp_path / "backbone.pth")
    load_weights(model, read_weights(str(tmp_path), "own"))
    assert same(model, saved)


@pytest.mark.parametrize(
    "other, message",
    [
        (
            lambda: get_model("mbf", num_features=8),
            "lacks conv1.weight, bn1.weight, bn1.bias and .* others and has the unexpected layers.0.layers.0.weight, ",
        ),
        (lambda: get_model("small", num_features=16), r"fc.weight has the shape \(16, 2048\), expected \(8, 2048\)"),
        (lambda: nn.Sequential(small()), "lacks conv1.weight, .* and has the unexpected 0.conv1.weight, "),
    ],
)
def test_weights_of_another_network_are_refused(tmp_path, other, message):
    path = tmp_path / "backbone.pth"
    torch.save(other().state_dict(), path)
    model = small()
    before = model.conv1.weight.clone()
    with pytest.raises(ValueError, match=f"{path} does not fit this backbone: .*{message}.*: these are weights of "):
        load_weights(model, read_weights(str(path), "small"))
    assert torch.equal(model.conv1.weight, before)


def test_mxnet_weights_of_another_network_are_refused():
    with pytest.raises(ValueError, match="m.params does not fit r18: it lacks arg:relu0_gamma, .* and 108 others: "):
        weights_from_arrays("m.params", mxnet_weights("small", small()), "r18")
    with pytest.raises(ValueError, match="m.params does not fit own: own is not a network of both trainers"):
        weights_from_arrays("m.params", mxnet_weights("small", small()), "own")


class Pickled:
    """An object whose pickle runs code of the file."""

    def __reduce__(self):
        return (print, ("this code must not run",))


@pytest.mark.parametrize(
    "content, message",
    [
        (Pickled(), "is damaged, or contains other objects than tensors"),
        (torch.zeros(3), "is not a state_dict, which has a tensor for every key"),
        ({"epoch": 3, "state_dict_backbone": {}}, "is not a state_dict, which has a tensor for every key"),
    ],
)
def test_files_without_a_state_dict_are_refused(tmp_path, content, message, capsys):
    path = tmp_path / "model.pt"
    torch.save(content, path)
    with pytest.raises(ValueError, match=f"{path} {message}"):
        read_weights(str(path), "small")
    assert "must not run" not in capsys.readouterr().out


def test_damaged_and_missing_files_are_named(tmp_path):
    path = tmp_path / "backbone.pth"
    torch.save(small().state_dict(), path)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ValueError, match=f"{path} is damaged"):
        read_weights(str(path), "small")
    with pytest.raises(FileNotFoundError, match="absent.pth"):
        read_weights(str(tmp_path / "absent.pth"), "small")
    (tmp_path / "model.pt").touch()
    with pytest.raises(ValueError, match="contains backbone.pth and model.pt: give the path of one"):
        read_weights(str(tmp_path), "small")
