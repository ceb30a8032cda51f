"""Models of timm as backbones; the trainer does not install timm."""

import builtins
import importlib
import re

import pytest
import torch

from partial_fc.export.model import FaceModel
from partial_fc.export.parity import random_faces
from partial_fc_tools.planner import Case
from partial_fc_tools.planner.backbones import backbone_sizes
from partial_fc_torch import get_model
from partial_fc_torch.onnx_export import OnnxExport


@pytest.fixture(scope="module")
def timm():
    """The package timm; it imports torchvision, which PyPI has only for CUDA."""
    if not importlib.util.find_spec("timm"):
        pytest.skip("no timm")
    get_model("timm:mobilenetv3_small_050", num_features=8, image_size=64)
    return importlib.import_module("timm")


@pytest.mark.parametrize("name", ["mobilenetv3_small_050", "vit_tiny_patch16_224"])
def test_a_model_trains_and_is_exported(name, timm):
    """One has a hidden layer before its classifier, the other attention and a fixed image size."""
    model = get_model(f"timm:{name}", num_features=8, image_size=64, dropout=0.2)
    model(torch.randn(4, 3, 64, 64)).square().sum().backward()
    assert all(value.grad is not None for value in model.parameters() if value.requires_grad)
    assert {key.removeprefix("model.") for key in model.state_dict() if key.startswith("model.")} == {
        *timm.create_model(name, num_classes=0).state_dict()
    }
    faces = random_faces((64, 64), 3)
    assert FaceModel(OnnxExport(model, faces.transpose(0, 3, 1, 2))(0), name).embed(faces).shape == (3, 8)
    assert backbone_sizes(Case(10, embedding=8, network=f"timm:{name}", trainer="torch")).multiplications > 10**6


def test_an_unknown_model_is_refused_with_near_names(timm):
    with pytest.raises(ValueError, match="'resnet51': did you mean one of .*resnet50"):
        get_model("timm:resnet51")


def test_without_timm_the_error_says_what_to_install(monkeypatch):
    def refuse(name, *arguments, **options):
        if name == "timm":
            raise ImportError("No module named 'timm'")
        return real(name, *arguments, **options)

    real = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", refuse)
    version = re.escape(torch.__version__)
    with pytest.raises(ValueError, match=f"timm cannot be imported .*: pip install timm torch=={version}$"):
        get_model("timm:resnet18")
