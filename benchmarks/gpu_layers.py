"""The forms of the layer that benchmarks/gpu.py compares, as functions of (classes, sample ratio, device)."""

from collections.abc import Callable
from unittest import mock

import layer_torch
import torch
from textbook_torch import TextbookPartialFC
from torch.nn.functional import normalize

from partial_fc_torch.layer import module


class OtherLoss(TextbookPartialFC):
    """The textbook's softmax of cosines by a fused cross entropy without margin."""

    dtype = torch.bfloat16
    loss: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

    def forward(self, features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        weight, columns = self.select(labels)
        unit = (normalize(features) * self.scale).to(self.dtype)
        return self.loss(unit, normalize(weight).to(self.dtype), columns)


def textbook(classes: int, ratio: float, device, kind: type[TextbookPartialFC] = TextbookPartialFC):
    return kind(layer_torch.SCALE, layer_torch.MARGIN, layer_torch.EMBEDDING, classes, ratio, device)


def compiled(classes: int, ratio: float, device):
    layer = textbook(classes, ratio, device)
    layer.compile(backend="inductor" if device.type == "cuda" else "eager")
    return layer


def half(classes: int, ratio: float, device):
    """Like arcface_torch with fp16: the product in float16, the softmax in float32."""
    layer = textbook(classes, ratio, device)
    layer.forward = torch.autocast(device.type, torch.float16)(layer.forward)
    return layer


def liger(classes: int, ratio: float, device):
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    layer = textbook(classes, ratio, device, OtherLoss)
    fused = LigerFusedLinearCrossEntropyLoss(accum_dtype=torch.float32)
    layer.loss = lambda unit, weight, columns: fused(weight, unit, columns)
    return layer


def cut_cross_entropy(classes: int, ratio: float, device):
    from cut_cross_entropy import linear_cross_entropy

    layer = textbook(classes, ratio, device, OtherLoss)
    layer.loss = linear_cross_entropy
    return layer


def product(dtype: str, kernel: str, unit_copy: bool | None = None) -> Callable:
    """Returns PartialFC with centers drawn on the device, because NumPy takes a minute for ten million."""

    arguments = {"layer_dtype": dtype, "layer_kernel": kernel, "unit_copy": unit_copy}

    def build(classes: int, ratio: float, device):
        with mock.patch.object(module, "center_blocks", lambda *_: iter(())):
            layer = layer_torch.partial_fc(classes, ratio, device, **arguments)
        torch.nn.init.normal_(layer.weight, std=0.01)
        return layer

    return build


def uses_kernels(layer) -> bool:
    """Returns whether the layer has used the kernels. If not, it has warned why."""
    return layer._computation.of_torch not in layer._computation.chosen.values()


def linear_cross_entropy(classes: int, ratio: float, device):
    layer = textbook(classes, ratio, device, OtherLoss)
    layer.loss = torch.nn.functional.linear_cross_entropy
    return layer


# Forms by name. If there is too little time, the last ones are left out.
PATHS: dict[str, Callable] = {
    "triton, float16": product("float16", "triton"),
    "mm, float16": product("float16", "mm"),
    "mm, TF32": product("tf32", "mm"),
    "torch, float16": product("float16", "torch"),
    "torch, TF32": product("tf32", "torch"),
    "mm, float16, without copy": product("float16", "mm", unit_copy=False),
    "triton, bfloat16": product("bfloat16", "triton"),
    "torch, float32": product("float32", "torch"),
    "textbook, float16": half,
    "textbook, TF32": textbook,
    "cut-cross-entropy": cut_cross_entropy,
    "Liger": liger,
    "linear_cross_entropy": linear_cross_entropy,
    "textbook, TF32, compiled": compiled,
}
