"""How the layer looks to its users: arguments, names of the originals, repr, types, documentation."""

import inspect
import re
import subprocess
import sys

import numpy as np
import onnxruntime
import pytest
import torch

import partial_fc_torch
from partial_fc_torch import CosFace, PartialFC, PartialFC_V2, export_onnx
from partial_fc_torch.layer.module import ClassCenters
from paths import ROOT

SIZES = {"num_classes": 10, "embedding_size": 4}


def test_the_names_of_the_originals_are_aliases():
    layers = PartialFC(CosFace(), **SIZES), PartialFC(margin_softmax=CosFace(), **SIZES)
    layers += PartialFC_V2(CosFace(), 4, 10), PartialFC_V2(margin_loss=CosFace(), **SIZES)
    for layer in layers:
        assert isinstance(layer.margin, type(CosFace())) and layer.num_classes == 10
    for make, alias in ((PartialFC, "margin_softmax"), (PartialFC_V2, "margin_loss")):
        for margins in ({}, {"margin": CosFace(), alias: CosFace()}):
            with pytest.raises(TypeError, match=f"one of the arguments margin and {alias}"):
                make(**margins, **SIZES)
    with pytest.raises(ValueError, match="num_classes is 0"):
        PartialFC_V2(CosFace(), 4)
    for make in (PartialFC, PartialFC_V2):
        for name, value in (("num_classes", "100"), ("embedding_size", 4.0)):
            with pytest.raises(TypeError, match=f"^{name} is {value!r}, but must be an integer"):
                make(CosFace(), **{**SIZES, name: value})
        with pytest.raises(ValueError, match="^sample_rate must be at least 0 and at most 1, not 2"):
            make(CosFace(), sample_rate=2, **SIZES)


def test_both_classes_have_the_arguments_of_the_layer():
    """Each is passed on: a keyword of the base class that a subclass forgets would be out of the users' reach."""
    of_layer = set(inspect.signature(ClassCenters).parameters)
    assert of_layer <= set(inspect.signature(PartialFC).parameters)
    of_centers = {"optimizer", "update_in_backward", "center_dtype", "folder", "on_host"}
    assert of_layer - of_centers <= set(inspect.signature(PartialFC_V2).parameters)
    for cls in (PartialFC, PartialFC_V2):
        source = inspect.getsource(cls.__init__)
        passed = set(re.findall(r"^            (\w+)=\1,$", source, re.M))
        assert of_layer - of_centers - {"margin", "embedding_size", "num_classes", "sample_rate"} <= passed
        documented = set(re.findall(r"\b\w+\b", inspect.getdoc(cls)))
        assert set(inspect.signature(cls).parameters) <= documented


def test_a_learning_rate_is_needed_and_may_be_an_argument():
    batch = torch.ones(2, 4), torch.arange(2)
    with pytest.raises(ValueError, match=r"no learning rate: give it lr=.*other optimizers do not move them"):
        PartialFC(CosFace(), **SIZES).step(*batch)
    layer = PartialFC(CosFace(), lr=0.5, **SIZES)
    layer.step(*batch)
    assert layer.learning_rate == 0.5 and layer.num_update == 1


def test_a_step_in_inference_mode_leaves_nothing_that_later_steps_cannot_use():
    layer, batch = PartialFC(CosFace(), sample_rate=0.5, lr=0.5, **SIZES), (torch.ones(2, 4), torch.arange(2))
    with torch.inference_mode():
        layer.step(*batch)
    layer.step(*batch)
    assert layer.num_update == 2


def test_gradients_that_nobody_applies_are_a_warning(monkeypatch, caplog):
    monkeypatch.setattr("partial_fc_torch.layer.center_optimizer.MANY_PASSES", 3)
    layer = PartialFC(CosFace(), update_in_backward=False, lr=0.1, **SIZES)
    for _ in range(2):
        layer(torch.ones(2, 4), torch.arange(2)).backward()
    layer.optimizer.step()
    for _ in range(2):
        layer(torch.ones(2, 4), torch.arange(2)).backward()
    assert not caplog.records
    layer(torch.ones(2, 4), torch.arange(2)).backward()
    assert "3 backward passes of the layer without layer.optimizer.step()" in caplog.text


def test_the_repr_names_the_sizes():
    text = repr(PartialFC(CosFace(), sample_rate=0.5, **SIZES))
    assert "num_classes=10 (on this rank 0..9), embedding_size=4, sample_rate=0.5" in text and "optimizer=SGD" in text


def test_the_api_page_has_every_public_name():
    page = (ROOT / "docs" / "api.md").read_text()
    for name in partial_fc_torch.__all__:
        assert re.search(rf"\b{name}\b", page), name


@pytest.mark.parametrize("form", ["array", "tensor", "dict", "pixels"])
def test_a_backbone_of_a_user_becomes_an_onnx_file(form, tmp_path):
    class Backbone(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(5))

        def forward(self, inputs):
            return self.body(inputs["values"] if form == "dict" else inputs)

    rows = np.random.default_rng(0).standard_normal((3, 3, 8, 8)).astype(np.float32)
    pixels = np.random.default_rng(0).integers(0, 256, (3, 3, 8, 8)).astype(np.uint8)
    example = {"array": rows, "tensor": torch.from_numpy(rows), "dict": {"values": rows}, "pixels": pixels}[form]
    inputs = pixels / np.float32(127.5) - 1 if form == "pixels" else rows
    backbone = Backbone()
    backbone({"values": torch.from_numpy(rows)} if form == "dict" else torch.from_numpy(rows))
    path = tmp_path / "own.onnx"
    export_onnx(backbone, path, example, {"data": "drawn"})
    session = onnxruntime.InferenceSession(path)
    assert session.get_modelmeta().custom_metadata_map["data"] == "drawn" and backbone.training
    tensors = torch.from_numpy(inputs)
    expected = backbone({"values": tensors} if form == "dict" else tensors).detach()
    np.testing.assert_allclose(session.run(None, {session.get_inputs()[0].name: inputs})[0], expected, atol=1e-5)


PROGRAM = """
import torch

from partial_fc_torch import AdaFace, PartialFC, PartialFC_V2

layer = PartialFC(AdaFace(), num_classes=1000, embedding_size=64, lr=0.1, objective="mlcd", sample_rate=0.5)
gradient, loss = layer.step(torch.randn(4, 64), torch.arange(4))
value: torch.Tensor = loss
number: float | None = layer.learning_rate
layer.optimizer.step()
other = PartialFC_V2(AdaFace(), 64, 1000, 1.0, False, sub_centers=3)
"""


@pytest.mark.slow
@pytest.mark.thorough
def test_mypy_finds_the_types_of_the_layer(tmp_path):
    """As an installed package, with the types of PyTorch, which take a minute."""
    (tmp_path / "right.py").write_text(PROGRAM)
    (tmp_path / "wrong.py").write_text(f"{PROGRAM}text: str = loss\nPartialFC(AdaFace(), classes=3)\n")
    command = [ROOT / ".venv/bin/mypy", "--strict", "--python-executable", sys.executable, "right.py", "wrong.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=800, check=False)
    errors = [line for line in done.stdout.splitlines() if "error:" in line]
    assert [error.partition(":")[0] for error in errors] == ["wrong.py"] * 2, done.stdout + done.stderr
    assert 'keyword argument "classes"' in done.stdout
