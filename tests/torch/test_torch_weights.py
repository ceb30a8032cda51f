"""Weights from every kind of file, and errors for files that do not fit."""

from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from test_mxnet_weights import embed
from torch import nn

from partial_fc.checkpoint.model_format import MXNET
from partial_fc.training.saved_training import Pretrained, pretrained_from_files
from partial_fc_torch.backbones import get_model, network_with
from partial_fc_torch.export import export
from partial_fc_torch.published_files import read_pretrained
from partial_fc_torch.weights import borrowed, parameter_arrays, published_state, set_weights, statistic_arrays


def small(seed=0, **options):
    """A network with running statistics of noise."""
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
    saved, model = small(), small(seed=1)
    torch.save(saved.state_dict(), tmp_path / name)
    path = str(tmp_path if of_folder else tmp_path / name)
    pretrained = pretrained_from_files(path, False, read_pretrained)
    assert replace(pretrained, weights={}) == Pretrained(str(tmp_path / name), {}, None)
    assert not same(model, saved)
    set_weights(model, pretrained.weights, "small")
    assert same(model, saved)
    with pytest.raises(ValueError, match=f"{tmp_path} has no class centers"):
        pretrained_from_files(path, True, read_pretrained)


class Config:
    """An object of a user's program that a checkpoint contains."""

    def __init__(self):
        self.lr = 0.1


FORMS = {
    "DistributedDataParallel": lambda state: {f"module.{key}": value for key, value in state.items()},
    "torch.compile": lambda state: {f"_orig_mod.{key}": value for key, value in state.items()},
    "both": lambda state: {f"module._orig_mod.{key}": value for key, value in state.items()},
    "a compiled part": lambda state: {key.replace("layer1.", "layer1._orig_mod."): state[key] for key in state},
    "Lightning": lambda state: {
        "state_dict": {"head.weight": torch.ones(2), **{f"model.backbone.{key}": state[key] for key in state}},
        "hyper_parameters": Namespace(lr=0.1),
        "path": Path("runs"),
    },
    "objects": lambda state: {"model": state, "config": Config()},
}


@pytest.mark.parametrize("form", FORMS)
def test_state_dicts_as_other_programs_save_them(form, tmp_path, caplog):
    saved, model = small(), small(seed=1)
    path = tmp_path / ("model.ckpt" if form == "Lightning" else "model.pt")
    torch.save(FORMS[form](saved.state_dict()), path)
    weights = read_pretrained(str(path), False).weights
    set_weights(model, weights, "small")
    assert same(model, saved)
    shapes = {name.partition(":")[2]: array.shape for name, array in weights.items()}
    assert network_with(shapes, 112) == ("small", 8)
    assert ("not head.weight" in caplog.text) == (form == "Lightning")


def test_a_prefix_that_some_weights_lack_is_not_stripped():
    arrays = parameter_arrays(small()) | statistic_arrays(small())
    prefixed, other = (
        {name.replace(":", f":{prefix}."): array for name, array in arrays.items()} for prefix in ("model", "backbone")
    )
    for ambiguous in (prefixed | other, prefixed | {"arg:model.head": np.ones(2, np.float32)}):
        with pytest.raises(ValueError, match=r"lacks conv1.weight.* has the unexpected model\."):
            set_weights(small(), ambiguous, "small")


class Recurrent(nn.Module):
    """Its forward pass sets an attribute and replaces a buffer; PyTorch's RNNs also keep a list of their weights."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(3, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, rows):
        self.last, self.calls = rows, self.calls + 1
        return self.rnn(rows)[0]


def test_borrowed_tensors_are_used_everywhere_and_leave_no_trace():
    model, rows = Recurrent().train(), torch.randn(2, 3)
    before, state = model(rows), {name: value.clone() for name, value in model.state_dict().items()}
    last, parameters = model.last, dict(model.named_parameters())
    with borrowed(model, torch.zeros_like):
        assert not model.eval()(rows * 2).any() and model.calls == 1
    assert model.last is last and model.training and model.rnn.training
    assert all(value is parameters[name] and value.requires_grad for name, value in model.named_parameters())
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert torch.equal(model(rows), before)


def centers_of_ranks(*ranks):
    """Returns centers (L, 3) for each L in ``ranks``."""
    return [torch.randn(rows, 3) for rows in ranks]


@pytest.mark.parametrize("fields", [["weight"], ["weight", "weight_mom"]])
def test_centers_beside_a_state_dict(tmp_path, fields):
    torch.save(small().state_dict(), tmp_path / "backbone.pth")
    arrays = {field: centers_of_ranks(3, 3, 2) for field in fields}
    for field, by_rank in arrays.items():
        for rank, rows in enumerate(by_rank):
            torch.save(rows, tmp_path / f"rank_{rank}_softmax_{field}.pt")
    classes = read_pretrained(str(tmp_path), True).classes
    assert classes.num_classes == 8 and classes.widths == dict.fromkeys(fields, 3)
    for field, by_rank in arrays.items():
        np.testing.assert_array_equal(classes.rows(field, np.array([7, 0, 3])), torch.cat(by_rank)[[7, 0, 3]])


def test_checkpoints_of_arcface_torch(tmp_path, monkeypatch):
    saved, model, weight = small(), small(seed=1), centers_of_ranks(3, 2)
    for rank in range(2):
        fc = {"weight": weight[rank]}
        optimizer = {"state": {}, "param_groups": [{"lr": 0.1}]}
        content = {"epoch": 3, "state_dict_backbone": saved.state_dict(), "state_dict_softmax_fc": fc}
        torch.save({**content, "state_optimizer": optimizer}, tmp_path / f"checkpoint_gpu_{rank}.pt")
    pretrained = read_pretrained(str(tmp_path), True)
    assert pretrained.source == str(tmp_path / "checkpoint_gpu_0.pt")
    np.testing.assert_array_equal(pretrained.classes.rows("weight", np.arange(5)), torch.cat(weight))
    set_weights(model, pretrained.weights, "small")
    assert same(model, saved)
    monkeypatch.chdir(tmp_path)
    assert read_pretrained("checkpoint_gpu_0.pt", True).classes.num_classes == 5


@pytest.mark.parametrize("name", ["rank_1_softmax_weight.pt", "rank_1_softmax_weight_mom.pt", "checkpoint_gpu_1.pt"])
@pytest.mark.parametrize("content", ["pickle", "of another rank", "no centers"])
def test_damaged_centers_are_named_and_no_code_is_run(tmp_path, name, content, capsys):
    torch.save(small().state_dict(), tmp_path / "backbone.pth")
    of_rank = {"state_dict_softmax_fc": {"weight": torch.zeros(3, 2)}} if "gpu" in name else torch.zeros(3, 2)
    for rank in range(2):
        torch.save(of_rank, tmp_path / name.replace("1", str(rank)))
        if "mom" in name:
            torch.save(of_rank, tmp_path / f"rank_{rank}_softmax_weight.pt")
    wrong = {"pickle": Pickled(), "of another rank": torch.zeros(3, 4), "no centers": {"weight": 3}}[content]
    if "gpu" in name:
        wrong = {"state_dict_softmax_fc": wrong if content == "no centers" else {"weight": wrong}}
    torch.save(wrong, tmp_path / name)
    with pytest.raises(ValueError, match=str(tmp_path if content == "of another rank" else tmp_path / name)):
        read_pretrained(str(tmp_path / "backbone.pth"), True)
    assert "must not run" not in capsys.readouterr().out


def test_weights_that_are_not_finite_are_named(tmp_path):
    state = small().state_dict()
    state["fc.weight"][0, 1] = torch.nan
    path = tmp_path / "backbone.pth"
    torch.save(state, path)
    for read in (read_pretrained, lambda path, _: export(path, 112, np.empty((0, 112, 112, 3), np.uint8))):
        with pytest.raises(ValueError, match=f"{path}: arg:fc.weight has numbers that are not finite"):
            read(str(path), False)


def test_a_state_dict_without_counters_and_in_float16(tmp_path):
    saved, model = small(), small(seed=1)
    state = {key: value.half() for key, value in saved.state_dict().items() if not key.endswith("num_batches_tracked")}
    torch.save(state, tmp_path / "backbone.pth")
    weights = {**read_pretrained(str(tmp_path), False).weights, "state:fc.weight:": np.zeros(1)}  # is ignored
    set_weights(model, weights, "small")
    assert torch.equal(model.fc.weight, state["fc.weight"].float()) and model.fc.weight.dtype == torch.float32


@pytest.mark.parametrize("network", ["small", "vit_mini"])
def test_a_published_state_dict_needs_no_scale_of_the_pixels(network):
    saved, model = (get_model(network, num_features=8) for _ in range(2))
    saved.pixel_scale = MXNET.pixel_scale
    assert np.abs(embed(model) - embed(saved)).max() > 1e-2
    model.load_state_dict(published_state(saved))
    np.testing.assert_allclose(embed(model), embed(saved), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "other, message",
    [
        (
            lambda: get_model("mbf", num_features=8),
            "lacks conv1.weight, .* set network=mbf",
        ),
        (lambda: get_model("small", num_features=16), r"fc.weight .*\(16, 2048\), expected \(8, 2048\)"),
        (lambda: nn.Sequential(small()), "lacks conv1.weight, .* unexpected 0.conv1.weight"),
    ],
)
def test_weights_of_another_network_are_refused(other, message):
    model, unchanged = small(), small()
    with pytest.raises(ValueError, match=message):
        set_weights(model, parameter_arrays(other()) | statistic_arrays(other()), "small")
    assert same(model, unchanged)


class Pickled:
    """An object whose pickle runs code."""

    def __reduce__(self):
        return (print, ("this code must not run",))


@pytest.mark.parametrize("content", [Pickled(), torch.zeros(3), {"epoch": 3, "state_dict_backbone": 7}])
def test_files_without_a_state_dict_are_refused(tmp_path, content, capsys):
    path = tmp_path / "model.pt"
    torch.save(content, path)
    with pytest.raises(ValueError, match=f"{path} is (damaged|not a state_dict)"):
        read_pretrained(str(path), False)
    assert "must not run" not in capsys.readouterr().out


def test_damaged_missing_and_ambiguous_files_are_named(tmp_path):
    path = tmp_path / "backbone.pth"
    torch.save(small().state_dict(), path)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ValueError, match=f"{path} is damaged"):
        read_pretrained(str(path), False)
    with pytest.raises(FileNotFoundError, match="absent.pth"):
        read_pretrained(str(tmp_path / "absent.pth"), False)
    (tmp_path / "model.pt").touch()
    with pytest.raises(ValueError, match="backbone.pth and model.pt"):
        read_pretrained(str(tmp_path), False)


@pytest.mark.parametrize(
    "saved, network, message",
    [
        ("mobilefacenet", "mbf", "unexpected features.layers.2.bias: .* set network=mobilefacenet"),
        ("mbf", "mobilefacenet", "lacks features.layers.2.bias: .* set network=mbf"),
        ("vit_s", "vit_t", r"pos_embed .*\(1, 144, 512\), expected \(1, 144, 256\) .* set network=vit_s"),
    ],
)
def test_weights_of_another_network_name_it(saved, network, message):
    with torch.device("meta"):
        state = get_model(saved, num_features=8).state_dict()
    arrays = {f"arg:{key}": np.empty(value.shape, np.float32) for key, value in state.items()}
    with pytest.raises(ValueError, match=message):
        set_weights(get_model(network, num_features=8), arrays, network)
