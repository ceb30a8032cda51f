"""The programs of docs/extend.md run, and their classes compute what the page says."""

import contextlib
import importlib
import math
import re
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, linear, normalize

import default
from partial_fc.export.model import FaceModel
from partial_fc.training.schedule import Epochs, resolve_schedule
from partial_fc.training.trainer import train
from partial_fc_tools.planner import Case
from partial_fc_tools.planner.backbones import backbone_sizes
from partial_fc_torch import CosFace, PartialFC, PartialFC_V2, get_model
from partial_fc_torch.build import TorchFramework
from partial_fc_torch.layer.margins import margin_named
from partial_fc_torch.layer.optimizers import optimizer_named
from partial_fc_torch.optimizers import build_optimizer
from paths import ROOT

PROGRAMS = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", (ROOT / "docs" / "extend.md").read_text(), re.DOTALL)
TEXTS = """
import numpy as np


class Texts:
    def __init__(self):
        rng = np.random.default_rng(0)
        self.targets = np.repeat(np.arange(20), 4)
        self.tokens = rng.integers(1, 100, (80, 12))
        self.mask = (np.arange(12) < rng.integers(6, 13, (80, 1))).astype(np.float32)

    def __len__(self):
        return 80

    def __getitem__(self, position):
        return {"tokens": self.tokens[position], "mask": self.mask[position]}, self.targets[position]
"""
SIZES = {"num_classes": 30, "embedding_size": 8, "device": "cpu"}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder from which the programs can be imported."""
    for name, text in PROGRAMS:
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    return tmp_path


def batches(steps):
    rng = np.random.default_rng(0)
    for _ in range(steps):
        yield torch.from_numpy(rng.standard_normal((16, 8), np.float32)), torch.from_numpy(rng.integers(0, 30, 16))


def assert_gradients(layer, features, labels, loss_of):
    """Compares the gradients of a layer with a loss of the cosines (16, 30) in float64."""
    local = features.clone().requires_grad_()
    layer(local, labels).backward()
    inputs, centers = features.double().requires_grad_(), layer.weight.detach().double().requires_grad_()
    loss_of(linear(normalize(inputs), normalize(centers))).backward()
    torch.testing.assert_close(local.grad.double(), inputs.grad, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(layer.weight.grad.double(), centers.grad, rtol=1e-4, atol=1e-4)


def test_every_program_of_the_page_has_a_file_name():
    assert (ROOT / "docs" / "extend.md").read_text().count("```python") == len(PROGRAMS) == 11


@pytest.mark.parametrize(
    "name, printed",
    [
        ("mv.py", r"loss \d+\.\d{4}"),
        ("rare.py", r"margins \[0.15\d+, 0.5\], loss \d+\.\d{4}"),
        ("focal.py", r"loss \d+\.\d{4}"),
        ("lion.py", r"momentum \(1000, 128\)"),
        ("mixer.py", r"\d+ weights, loss \d+\.\d{4}"),
        ("signum.py", r"states of 25 parameters"),
        ("restarts.py", r"factors \[1.0, 0.5, 0.01, 1.0\]"),
        ("booth.py", r"eyes \[\[358.0, 270.0\], \[442.0, 270.0\]\]"),
        ("newest.py", r'{"loss": \[40, 2.0\]}'),
        ("named_files.py", r"files \['weight.npy', 'weight_mom.npy'\]"),
    ],
)
def test_a_program_runs(name, printed, folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    runpy.run_path(str(folder / name), run_name="__main__")
    assert re.fullmatch(printed, capsys.readouterr().out.strip())


def test_the_objective_matches_its_formula_in_float64(folder):
    layer = PartialFC_V2(CosFace(8.0), objective="focal:focal", objective_options={"gamma": 1.5}, **SIZES)
    features, labels = next(batches(1))
    loss = layer(features, labels)
    cosine = linear(normalize(features.double()), normalize(layer.weight.detach().double()))
    cosine[range(16), labels] -= 0.4
    ce = cross_entropy(8 * cosine, labels, reduction="none")
    assert loss.item() == pytest.approx(((1 - (-ce).exp()) ** 1.5 * ce).mean().item(), rel=1e-5)


@pytest.mark.parametrize("tiling", [{}, {"tile_classes": 7, "logits_cache_mb": 0}])
def test_the_margin_matches_its_formula_in_float64(tiling):
    s, m, t = 8.0, 0.35, 1.1
    layer = PartialFC_V2(margin_named("mv:MVSoftmax", s, {"t": t}), **SIZES, **tiling)
    features, labels = next(batches(1))
    layer.weight.data[labels[0]] = features[0] / 100  # no negative exceeds this target

    def textbook(cosine):
        target = cosine[range(16), labels] - m
        hard = cosine > target[:, None]
        assert not hard[0].all() and hard.any(dim=1).all()
        logits = torch.where(hard, t * cosine + t - 1, cosine).index_put((torch.arange(16), labels), target)
        return cross_entropy(s * logits, labels)

    assert_gradients(layer, features, labels, textbook)


def test_the_margin_of_a_rare_class_is_larger(folder, monkeypatch):
    monkeypatch.chdir(folder)
    counts = np.random.default_rng(1).integers(1, 600, 30)
    np.save("counts.npy", counts)
    layer = PartialFC_V2(margin_named("rare:RareClasses", 8.0, {"m": 0.4, "power": 0.5}), **SIZES)
    assert not any("margins" in name for name in layer.state_dict())
    features, labels = next(batches(1))
    margins = torch.zeros(16, 30).double()
    margins[range(16), labels] = torch.tensor([0.4 * (counts.min() / counts[label]) ** 0.5 for label in labels])
    assert_gradients(layer, features, labels, lambda cosine: cross_entropy(8 * (cosine - margins), labels))


@pytest.mark.slow
@pytest.mark.thorough
def test_an_encoder_of_transformers_trains_its_added_weights_alone_and_resumes(folder, monkeypatch, capfd):
    """Also the moving average keeps the frozen weights, and the ONNX file equals the network."""
    for name in ("transformers", "peft"):
        if not importlib.util.find_spec(name):
            pytest.skip(f"no {name}")
    with contextlib.suppress(ValueError):  # transformers imports torchvision if it exists, see timm_model.py
        get_model("timm:mobilenetv3_small_050", num_features=8, image_size=64)
    monkeypatch.chdir(folder)
    (folder / "texts.py").write_text(TEXTS)
    runpy.run_path(str(folder / "lora.py"), run_name="__main__")
    assert capfd.readouterr().out.strip().endswith("torch.Size([4, 16])")
    changes = {"task": "items", "rec": "texts:Texts", "network": "lora:network", "num_classes": 20}
    changes |= {"embedding_size": 16, "batch_size": 16, "optimizer": "adamw", "lr": 0.01, "lr_reference_batch": 0}
    changes |= {"max_update": 6, "lr_steps": [], "checkpoint_every": 3, "ema_decay": 0.9, "baselines": False}

    def trained(output, **more):
        settings = default.generate_config(changes={**changes, "output": str(output), **more}, trainer="torch")
        train(settings, TorchFramework())
        return [torch.load(output / f"backbone{kind}.pth", weights_only=True) for kind in ("", "_ema")]

    start = importlib.import_module("lora").network(num_features=16).state_dict()
    whole, average = trained(folder / "whole")
    learned = {name for name in start if "lora_" in name or name.startswith("fc.")}
    assert len(learned) == 2 * 2 * 2 + 2
    for weights in (whole, average):
        assert {name for name in start if name not in learned and not torch.equal(weights[name], start[name])} == set()
        assert all(not torch.equal(weights[name], start[name]) for name in learned)
    checkpoint = folder / "whole" / "checkpoints" / "step-0000000003"
    with np.load(checkpoint / "backbone.npz") as arrays:
        assert {name.split(":")[1] for name in arrays if name.startswith("state:")} == learned
    trained(folder / "resumed", resume=str(checkpoint))
    for name in ("backbone.pth", "backbone_ema.pth", "backbone.onnx", "rank_0_softmax_weight.pt"):
        assert (folder / "resumed" / name).read_bytes() == (folder / "whole" / name).read_bytes(), name


def test_the_optimizer_follows_its_algorithm():
    learning_rate, weight_decay, betas = 0.01, 0.1, (0.9, 0.99)
    layer = PartialFC(margin_softmax=CosFace(), optimizer=optimizer_named("lion:Lion", weight_decay), **SIZES)
    textbook = PartialFC_V2(CosFace(), **SIZES)
    layer.learning_rate, momentum = learning_rate, torch.zeros(30, 8)
    for features, labels in batches(4):
        textbook.weight.grad = None
        textbook(features, labels).backward()
        layer.step(features, labels)
        gradient, weight = textbook.weight.grad, textbook.weight.data
        direction = torch.sign(betas[0] * momentum + (1 - betas[0]) * gradient)
        weight -= learning_rate * (direction + weight_decay * weight)
        momentum = betas[1] * momentum + (1 - betas[1]) * gradient
        torch.testing.assert_close(layer.weight, textbook.weight.data, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(layer.weight_momentum, momentum, rtol=1e-4, atol=1e-6)


def test_the_optimizer_of_the_backbone_follows_its_algorithm_and_resumes():
    def network():
        torch.manual_seed(0)
        return torch.nn.Linear(8, 4)

    whole, resumed = network(), network()
    optimizers = [build_optimizer(model, "signum:Signum", 0.1, options={"beta": 0.8}) for model in (whole, resumed)]
    weight, mean = whole.weight.detach().clone(), torch.zeros(4, 8)
    for step, (features, _) in enumerate(batches(4)):
        if step == 2:
            resumed.load_state_dict(whole.state_dict())
            optimizers[1].restore(optimizers[0].states())
        for model, optimizer in zip((whole, resumed), optimizers):
            model.zero_grad()
            model(features).square().sum().backward()
            optimizer.update(0.01)
            if model is whole:
                mean = 0.8 * mean + 0.2 * model.weight.grad
        weight = (1 - 0.01 * 0.1) * weight - 0.01 * mean.sign()
        torch.testing.assert_close(whole.weight.detach(), weight, rtol=1e-5, atol=1e-6)
    assert torch.equal(whole.weight, resumed.weight)


def test_the_schedule_is_what_the_settings_select():
    changes = {"schedule": "restarts:WarmRestarts", "schedule_options": "epochs=2", "warmup_steps": 5, "num_epoch": 4}
    settings = default.generate_config(changes=changes, trainer="torch")
    _, factor = resolve_schedule(settings, Epochs(num_images=100, global_batch=10))
    expected = [t / 5 if t < 5 else (1 + math.cos(math.pi * ((t - 1) % 20) / 20)) / 2 for t in range(1, 41)]
    assert [factor(t) for t in range(1, 41)] == pytest.approx(expected)


@pytest.mark.parametrize("ratio", [0.3, 1.0])
def test_the_store_trains_as_memory_does_and_its_files_have_the_centers(ratio, folder: Path):
    store = importlib.import_module("named_files").NamedFiles
    layers = [
        PartialFC(margin_softmax=CosFace(), sample_rate=ratio, **SIZES, **more)
        for more in ({}, {"store": lambda num_local, device: store(num_local, device, str(folder))})
    ]
    for features, labels in batches(3):
        for layer in layers:
            layer.learning_rate = 0.1
            layer.step(features, labels)
    for name in ("weight", "weight_mom"):
        expected = getattr(layers[0], name).detach().numpy()
        np.testing.assert_array_equal(np.load(folder / f"{name}.npy"), expected)


def test_the_backbone_trains_and_the_planner_derives_its_sizes(tmp_path):
    """Its head computes in float32 under autocast."""
    plain = {"debug": True, "num_classes": 10, "batch_size": 4, "embedding_size": 16, "max_update": 2, "lr_steps": []}
    changes = {**plain, "network": "mixer:mixer", "models_root": str(tmp_path), "val_targets": [], "baselines": False}
    settings = default.generate_config(changes=changes, trainer="torch")
    train(settings, TorchFramework())
    (run,) = tmp_path.glob("mixer-arcface-*")
    backbone = get_model("mixer:mixer", num_features=16, dropout=0.4)
    assert backbone.dropout.p == 0.4
    backbone.load_state_dict(torch.load(run / "backbone.pth", weights_only=True))
    with torch.autocast("cpu", torch.bfloat16):
        assert backbone(torch.zeros(2, 3, 112, 112)).dtype == torch.float32
    assert FaceModel.open(str(run)).embed(np.zeros((3, 112, 112, 3), np.uint8)).shape == (3, 16)
    sizes = backbone_sizes(Case(10, embedding=16, network="mixer:mixer", trainer="torch"))
    assert sizes.parameters == sum(parameter.numel() for parameter in backbone.parameters())
    assert sizes.multiplications == 14**2 * (3 * 64 * 64 + 4 * (64 * 25 + 64 * 64) + 64 * 16)


@pytest.mark.parametrize(
    "name, message",
    [
        ("mixer:absent", "mixer has no absent"),
        ("mixer:Mixed", "cannot be called with num_features, image_size: "),
        ("builtins:dict", "name a subclass of torch.nn"),
    ],
)
def test_other_objects_are_refused_as_backbones(name, message):
    with pytest.raises(ValueError, match=message):
        get_model(name, num_features=8)
