"""Exports a backbone to ONNX and compares the embeddings with PyTorch's.

The file of a backbone of images takes normalized pixels ``data`` (batch, 3, S, S), as the files of arcface_torch; that
of another takes what the backbone takes: ``data``, or the names of its dict. It has opset 11, which onnxruntime 1.6
reads. PyTorch's exporter of TorchScript writes it: the other one has no opset below 18.

Shapes: N items, S image size, E embedding.
"""

import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parametrize

from partial_fc.data.batch import Inputs, map_inputs
from partial_fc.export.normalization import NORMALIZED, PIXELS
from partial_fc.export.onnx import BATCH, INPUT, LARGEST, OPSET

from .backbones import Backbone
from .batches import Tensors, as_tensors
from .pixels import normalized
from .weights import borrowed

OUTPUT = "embedding"
LATER_OPSET = 17  # of 2022; onnxruntime 1.12 reads it
EPS = "bn_eps"  # in the metadata


class OnnxExport:
    """Makes the ONNX file and compares it with PyTorch on examples, and on random images if it takes pixels.

    Args:
        model: the backbone, without DistributedDataParallel around it, on any device.
        examples: of items as a batch has them; of images there may be none.
        metadata: num_update -> metadata of the file, by name; None for none.
        pixels: whether they are RGB pixels (n, 3, S, S) uint8, which the backbone takes normalized.
        weights: returns a context in which the model has the weights to export; its own, unless given.
    """

    def __init__(
        self,
        model: nn.Module,
        examples: Inputs,
        metadata: Callable[[int], Mapping[str, str]] | None = None,
        pixels: bool = True,
        weights: Callable[[], AbstractContextManager] = nullcontext,
    ):
        self.model, self.examples, self.pixels, self.weights = model, examples, pixels, weights
        self.metadata = metadata or (lambda num_update: {})
        self._note = ""  # on the form of the file

    @property
    def fits(self) -> bool:
        """Whether the weights fit into one file."""
        return 4 * sum(tensor.numel() for tensor in self.model.state_dict().values()) < LARGEST

    def __call__(self, num_update: int) -> bytes:
        """Returns the bytes of the file; neither the weights nor the mode of the model change.

        Raises:
            ValueError: It would exceed 2 GiB, an operator has no counterpart in ONNX, or the embeddings differ from
                PyTorch's by a cosine distance above 1e-4, see partial_fc.export.parity.
        """
        from partial_fc.export import parity

        with self.weights(), for_inference(self.model) as model:
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
        """Checks that onnxruntime runs the file, else ValueError. An untrained network may be chaotic.

        Logs a warning if the file has a later opset.
        """
        from partial_fc.export import parity
        from partial_fc.export.model import run_session

        with for_inference(self.model) as model:
            content = self._content(model, 0)
        if self._note:
            logging.warning("%s", self._note)
        named, examples = not self.pixels, self.examples
        file = parity.open_named(content, examples) if named else parity.check_form(content, raw_pixels=False)
        # The exporter has seen one item: a forward pass may have made it a constant.
        run_session(file.session, map_inputs(torch.Tensor.numpy, _by_name(self._examples(2))), parity.NAME)

    def _content(self, model: nn.Module, num_update: int) -> bytes:
        # Imported here: only rank 0 needs them, and loading takes longer than a step of a small network.
        import onnx

        from partial_fc.export.model_file import first_line

        if not self.fits:
            raise ValueError("the weights exceed the 2 GiB of an ONNX file: take the state_dict, backbone.pth")
        one = self._examples(1)
        if self.pixels:
            one = torch.zeros_like(one)
        try:
            model(one)
        except Exception as error:  # of a user's forward pass
            kind = type(error).__name__
            raise ValueError(
                f"the backbone fails on one item, in evaluation mode on the CPU: {kind}: {first_line(error)}"
            ) from error
        try:
            file = _exported(model, one, OPSET)
        except torch.onnx.errors.UnsupportedOperatorError as unsupported:
            try:
                file = _exported(model, one, LATER_OPSET)
            except RuntimeError:  # no opset has it
                raise _refusal(unsupported) from unsupported
            self._note = f"{first_line(unsupported)}: the ONNX file has opset {LATER_OPSET}"
        except RuntimeError as error:
            raise _refusal(error) from error
        exported = onnx.load_model_from_string(file)
        eps = {EPS: repr(model.eps)} if isinstance(model, Backbone) else {}
        taken = {PIXELS: NORMALIZED} if self.pixels else {}
        onnx.helper.set_model_props(exported, {**eps, **taken, **self.metadata(num_update)})
        content: bytes = exported.SerializeToString()
        return content

    def _examples(self, count: int) -> Tensors:
        """So many items as the backbone takes them."""
        return self._taken(map_inputs(lambda array: np.resize(array, (count, *array.shape[1:])), self.examples))

    def _taken(self, inputs: Inputs) -> Tensors:
        """What the backbone takes."""
        tensors = as_tensors(inputs)
        return normalized(tensors, torch.contiguous_format) if self.pixels else tensors

    def _embed(self, model: nn.Module, inputs: Inputs) -> np.ndarray:
        """Returns (N, E)."""
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


def _exported(model: nn.Module, one: Tensors, opset: int) -> bytes:
    """Returns the content of the file; ``one`` has the inputs of one item."""
    file = io.BytesIO()
    by_name = _by_name(one)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of the exporter, about itself
        torch.onnx.export(
            ByName(model, list(one)) if isinstance(one, Mapping) else model,
            tuple(by_name.values()),
            file,
            dynamo=False,
            opset_version=opset,
            input_names=list(by_name),
            output_names=[OUTPUT],
            dynamic_axes={name: {0: BATCH} for name in (*by_name, OUTPUT)},
        )
    return file.getvalue()


def _by_name(inputs: Tensors) -> Mapping[str, torch.Tensor]:
    return inputs if isinstance(inputs, Mapping) else {INPUT: inputs}


def _refusal(error: Exception) -> ValueError:
    from partial_fc.export.model_file import first_line

    return ValueError(f"this backbone cannot be exported to ONNX, opset {OPSET}: {first_line(error)}")


@contextmanager
def for_inference(model: nn.Module) -> Iterator[nn.Module]:
    """A context in which the module is in eval mode on the CPU and computes in float32, without gradients.

    Its device keeps no second copy. What is parametrized, as by spectral_norm, is constant: ONNX lacks operators that
    compute it.
    """
    with torch.no_grad(), borrowed(model, lambda tensor: tensor.detach().to("cpu", copy=True).contiguous()):
        model.eval()
        if isinstance(model, Backbone):
            model.fp16 = False
        for module in model.modules():
            if isinstance(module, parametrize.ParametrizationList):
                module.forward = partial(torch.Tensor.detach, module())
        yield model
