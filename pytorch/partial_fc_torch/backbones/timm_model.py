"""Any model of timm (https://github.com/huggingface/pytorch-image-models) as a backbone with an embedding head."""

import difflib
import sys

import torch
from torch import nn

from .backbone import Backbone, Options, last_batch_norm

_declared: list[torch.library.Library] = []  # declarations end with their object


class TimmModel(Backbone):
    """The pooled features of a model of timm, then dropout - FC - BN; timm's weights keep their names below ``model``.

    Args:
        options: see get_model.
        name: one of ``timm.list_models()``.

    Raises:
        ValueError: timm cannot be imported, has no such model, or cannot build it for this image size.
    """

    def __init__(self, options: Options, name: str):
        super().__init__(options)
        self.model = _build(name, options.image_size)
        self.dropout = nn.Dropout(options.dropout)
        inputs = getattr(self.model, "head_hidden_size", self.model.num_features)
        self.fc = nn.Linear(inputs, options.num_features)
        self.features = last_batch_norm(options.num_features)

    def body(self, images: torch.Tensor) -> torch.Tensor:
        """(B, 3, S, S) -> (B, F), the input of timm's classifier."""
        if torch.jit.is_tracing():
            for module in self.modules():
                if hasattr(module, "fused_attn"):
                    module.fused_attn = False  # opset 11 has no operator for it
        return self.model(images)

    def head(self, maps: torch.Tensor) -> torch.Tensor:
        """(B, F) -> (B, E)."""
        return self.features(self.fc(self.dropout(maps)))


def _build(name: str, image_size: int) -> nn.Module:
    try:
        _fit_torchvision()
        import timm
    except (ImportError, RuntimeError) as error:
        # Named, because pip would otherwise replace PyTorch by the build for which the newest torchvision was compiled.
        raise ValueError(
            f"network is 'timm:{name}', but timm cannot be imported ({error}): pip install timm "
            f"torch=={torch.__version__}"
        ) from error
    if not timm.is_model(name):
        near = difflib.get_close_matches(name, timm.list_models(), n=3, cutoff=0.0)
        raise ValueError(f"timm has no model {name!r}: did you mean one of {', '.join(near)}?")
    configuration = timm.models.get_pretrained_cfg(name)
    # Models that accept every image size do not take this argument.
    sizes = {"img_size": image_size} if configuration and configuration.fixed_input_size else {}
    try:
        return timm.create_model(name, num_classes=0, **sizes)
    except Exception as error:  # a model may raise anything
        raise ValueError(f"timm cannot build {name} for images of {image_size} x {image_size}: {error}") from error


def _fit_torchvision() -> None:
    """Makes torchvision importable beside a PyTorch for CPUs; timm imports it.

    PyPI has torchvision only for CUDA, whose compiled operators a PyTorch for CPUs does not load. Without them its
    import fails on the first one that it describes, so these are declared here. No model of timm uses them.
    """
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        _declared.append(torch.library.Library("torchvision", "FRAGMENT"))
        for name in ("nms", "qnms"):
            _declared[-1].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
