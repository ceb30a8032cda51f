"""Weights from every kind of file, and the message about files that do not fit."""

import numpy as np
import pytest
import torch
from test_mxnet_weights import RECORDED, embed
from torch import nn

from drawn_weights import mxnet_weights
from partial_fc.checkpoint.mxnet_params import array_file_chunks
from partial_fc.training.pretrained import pretrained_from_files
from partial_fc.utils.atomic_io import replace_file
from partial_fc_torch.backbones import get_model
from partial_fc_torch.weights import parameter_arrays, read_weights, set_weights, statistic_arrays


def small(seed=0, **options):
    """A network with statistics of its own."""
    torch.manual_seed(seed)
    model = get_model("small", num_features=8, **options)
    model(torch.randn(4, 3, 112, 112))
    return model


def same(model, other):
    state = other.state_dict()
    return all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("name", ["backbone.pth", "model.pt"])
@pytest.mark.parametrize("of_folder", [False, True])
def test_a_state_dict_of_pytorch(tmp_path, name, of_folder):
    saved, model = small(), small(seed=1, eps=2e-5)
    torch.save(saved.state_dict(), tmp_path / name)
    torch.save(torch.zeros(3, 8), tmp_path / "rank_0_softmax_weight.pt")  # which lies beside it
    path = str(tmp_path if of_folder else tmp_path / name)
    pretrained = pretrained_from_files(path, with_classes=False, read_weights=read_weights)
    assert (pretrained.source, pretrained.classes) == (str(tmp_path / name), None)
    assert not same(model, saved)
    set_weights(model, pretrained.weights, "small")
    assert same(model, saved) and model.eps == 1e-5
    with pytest.raises(ValueError, match=f"{name} has no class centers: give a checkpoint, or leave class_map empty"):
        pretrained_from_files(path, with_classes=True, read_weights=read_weights)


def test_a_state_dict_without_counters_and_in_float16(tmp_path):
    saved, model = small(), small(seed=1)
    state = {key: value.half() for key, value in saved.state_dict().items() if not key.endswith("num_batches_tracked")}
    torch.save(state, tmp_path / "backbone.pth")
    set_weights(model, read_weights(str(tmp_path))[1], "small")
    assert torch.equal(model.fc.weight, state["fc.weight"].float()) and model.fc.weight.dtype == torch.float32


@pytest.mark.parametrize("of_folder", [False, True])
def test_params_of_mxnet(tmp_path, of_folder):
    model = small()
    path = tmp_path / "model-0000.params"
    replace_file(str(path), array_file_chunks(mxnet_weights("small", model.state_dict())))
    pretrained = pretrained_from_files(str(tmp_path if of_folder else path), False, read_weights)
    set_weights(model, {**pretrained.weights, "state:conv0_weight:": np.zeros(1)}, "small")
    np.testing.assert_allclose(embed(model), RECORDED["small"], rtol=0, atol=1e-5)
    assert model.eps == 2e-5


def test_arrays_of_a_checkpoint():
    saved, model = small(eps=2e-5), small(seed=1)
    parameters, statistics = parameter_arrays(saved), statistic_arrays(saved)
    assert {name.rpartition(".")[2] for name in statistics} == {"running_mean", "running_var"}
    assert parameters["arg:bn1.num_batches_tracked"] == 1 and parameters["eps"] == 2e-5
    kept = saved.conv1.weight.clone()
    nn.init.zeros_(saved.conv1.weight)
    set_weights(model, {**parameters, **statistics, "state:fc.weight:": np.zeros(1)}, "small")
    assert torch.equal(model.conv1.weight, kept) and model.eps == 2e-5
    nn.init.zeros_(model.conv1.weight)
    assert same(model, saved)


def test_weights_of_a_module_of_a_user(tmp_path):
    saved, model = nn.Linear(3, 2), nn.Linear(3, 2)
    set_weights(model, {**parameter_arrays(saved), **statistic_arrays(saved)}, "own")
    assert same(model, saved)


@pytest.mark.parametrize(
    "other, message",
    [
        (
            lambda: get_model("mbf", num_features=8),
            "it lacks conv1.weight, bn1.weight, bn1.bias and .* others and has the unexpected layers.0.layers.0."
            ".*: these are weights of another network",
        ),
        (
            lambda: get_model("small", num_features=16),
            r"fc.weight has the shape \(16, 2048\), expected \(8, 2048\) as in",
        ),
        (lambda: nn.Sequential(small()), "lacks conv1.weight, .* and has the unexpected 0.conv1.weight, "),
    ],
)
def test_weights_of_another_network_are_refused(other, message):
    model, unchanged = small(), small()
    with pytest.raises(ValueError, match=message):
        set_weights(model, parameter_arrays(other()) | statistic_arrays(other()), "small")
    assert same(model, unchanged)


def test_weights_of_another_network_of_mxnet_are_refused():
    arrays = mxnet_weights("small", small().state_dict())
    with pytest.raises(
        ValueError, match="it lacks arg:relu0_gamma, .* and 108 others: these are weights of another netw"
    ):
        set_weights(get_model("r18"), arrays, "r18")
    with pytest.raises(ValueError, match="own is not a network of both trainers"):
        set_weights(nn.Linear(3, 2), arrays, "own")


class Pickled:
    """An object whose pickle runs code."""

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
        read_weights(str(path))
    assert "must not run" not in capsys.readouterr().out


def test_damaged_and_missing_files_are_named(tmp_path):
    path = tmp_path / "backbone.pth"
    torch.save(small().state_dict(), path)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ValueError, match=f"{path} is damaged"):
        read_weights(str(path))
    with pytest.raises(FileNotFoundError, match="absent.pth"):
        read_weights(str(tmp_path / "absent.pth"))
    (tmp_path / "model.pt").touch()
    with pytest.raises(ValueError, match="contains backbone.pth and model.pt: give the path of one"):
        read_weights(str(tmp_path))
