"""Exports a backbone to ONNX and compares the embeddings with PyTorch's.

The file of a backbone of images takes normalized pixels ``data`` (batch, 3, S, S), as the files of arcface_torch; that
of another takes what the backbone takes: ``data``, or the names of its dict. It has opset 11, which onnxruntime 1.6
reads. PyTorch's exporter of TorchScript writes it: the other one has no opset below 18.

Shapes: N items, S image size, E embedding.
"""

import copy
import io
import warnings
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import nn

from partial_fc.data.batch import Inputs, map_inputs
from partial_fc.export.onnx import BATCH, INPUT, LARGEST, OPSET

from .backbones import Backbone
from .batches import Tensors, as_tensors
from .pixels import normalized

OUTPUT = "embedding"
EPS = "bn_eps"  # in the metadata


class OnnxExport:
    """Makes the ONNX file and compares it with PyTorch on examples, and on random images if it takes pixels.

    Args:
        model: the backbone, without DistributedDataParallel around it, on any device.
        examples: of items as a batch has them; of images there may be none.
        metadata: num_update -> metadata of the file, by name; None for none.
        pixels: whether they are RGB pixels (n, 3, S, S) uint8, which the backbone takes normalized.
    """

    def __init__(
        self,
        model: nn.Module,
        examples: Inputs,
        metadata: Callable[[int], Mapping[str, str]] | None = None,
        pixels: bool = True,
    ):
        self.model, self.examples, self.pixels = model, examples, pixels
        self.metadata = metadata or (lambda num_update: {})

    @property
    def fits(self) -> bool:
        """Whether the weights fit into one file."""
        return 4 * sum(tensor.numel() for tensor in self.model.state_dict().values()) < LARGEST

    def __call__(self, num_update: int) -> bytes:
        """Returns the bytes of the file; neither the weights nor the mode of the model change.

        Raises:
            ValueError: It would exceed 2 GiB, an operator has no counterpart in ONNX, or the embeddings differ from
                PyTorch's by a cosine distance above 1e-4, see partial_fc.inference.parity.
        """
        from partial_fc.inference import parity

        model = inference_copy(self.model)
        content = self._content(model, num_update)
        if self.pixels:
            faces = self.examples.transpose(0, 2, 3, 1)
            parity.check_export(
                content, faces, lambda faces: self._embed(model, faces.transpose(0, 3, 1, 2)), "PyTorch", False
            )
        else:
            parity.check_named(content, self.examples, lambda inputs: self._embed(model, inputs), "PyTorch")
        return content

    def validate_export(self) -> None:
        """Checks that onnxruntime loads the file, else ValueError. An untrained network may be chaotic."""
        from partial_fc.inference import parity

        content = self._content(inference_copy(self.model), 0)
        if self.pixels:
            parity.check_form(content, raw_pixels=False)
        else:
            parity.open_named(content, self.examples)

    def _content(self, model: nn.Module, num_update: int) -> bytes:
        # Imported here: only rank 0 needs them, and loading takes longer than a step of a small network.
        import onnx

        from partial_fc.inference.model import first_line

        if not self.fits:
            raise ValueError("the weights exceed the 2 GiB of an ONNX file: take the state_dict, backbone.pth")
        file = io.BytesIO()
        if self.pixels:
            one = torch.zeros(1, *self.examples.shape[1:])
        else:
            one = self._taken(map_inputs(lambda array: np.resize(array, (1, *array.shape[1:])), self.examples))
        by_name = one if isinstance(one, Mapping) else {INPUT: one}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of the exporter, about itself
            try:
                torch.onnx.export(
                    ByName(model, list(one)) if isinstance(one, Mapping) else model,
                    tuple(by_name.values()),
                    file,
                    dynamo=False,
                    opset_version=OPSET,
                    input_names=list(by_name),
                    output_names=[OUTPUT],
                    dynamic_axes={name: {0: BATCH} for name in (*by_name, OUTPUT)},
                )
            except RuntimeError as error:  # the exporter's errors and those of a forward pass
                raise ValueError(
                    f"this backbone cannot be exported to ONNX, opset {OPSET}: {first_line(error)}"
                ) from error
        exported = onnx.load_model_from_string(file.getvalue())
        eps = {EPS: repr(model.eps)} if isinstance(model, Backbone) else {}
        onnx.helper.set_model_props(exported, {**eps, **self.metadata(num_update)})
        content: bytes = exported.SerializeToString()
        return content

    def _taken(self, inputs: Inputs) -> Tensors:
        """What the backbone takes."""
        tensors = as_tensors(inputs)
        return normalized(tensors) if self.pixels else tensors

    def _embed(self, model: nn.Module, inputs: Inputs) -> np.ndarray:
        """Returns (N, E)."""
        with torch.no_grad():
            embeddings: np.ndarray = model(self._taken(inputs)).numpy()
        return embeddings


class ByName(nn.Module):
    """A backbone that takes a dict, called with its values in the order of ``names``: a graph has no dicts."""

    def __init__(self, model: nn.Module, names: list[str]):
        super().__init__()
        self.model, self.names = model, names
        self.train(model.training)  # else the exporter would leave the backbone in training mode

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        """Returns the embeddings (N, E)."""
        embeddings: torch.Tensor = self.model(dict(zip(self.names, tensors)))
        return embeddings


def inference_copy(model: nn.Module) -> nn.Module:
    """Returns a copy in eval mode on the CPU that computes in float32, without a second copy on the model's device."""
    memo: dict[int, object] = {id(tensor): tensor.detach().to("cpu", copy=True) for tensor in model.buffers()}
    for tensor in model.parameters():
        memo[id(tensor)] = nn.Parameter(tensor.detach().to("cpu", copy=True), tensor.requires_grad)
    copied = copy.deepcopy(model, memo).eval()
    if isinstance(copied, Backbone):
        copied.fp16 = False
    return copied
