"""Exports a backbone to ONNX and compares the embeddings with PyTorch's.

The file of an image backbone takes normalized pixels ``data`` (batch, 3, S, S), like the files of arcface_torch. The
file of another backbone takes the backbone's inputs: ``data``, or one input for each key of a dict. Files have opset
11, which onnxruntime 1.6 reads. They are written by PyTorch's TorchScript exporter, as the newer exporter has no opset
below 18.

Shapes: N items, S image size, E embedding.
"""

import io
import logging
import os
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
from partial_fc.utils.atomic_io import replace_file

from .backbones import Backbone
from .batches import Tensors, as_tensors
from .pixels import normalized
from .weights import borrowed

OUTPUT = "embedding"
LATER_OPSET = 17  # of 2022; onnxruntime 1.12 reads it
EPS = "bn_eps"  # in the metadata


class OnnxExport:
    """Exports a backbone, and compares the file with PyTorch on examples, and on random images if it takes pixels.

    Args:
        model: the backbone without DistributedDataParallel, on any device.
        examples: inputs of some items, as in a batch; may be empty if they are images.
        metadata: maps the number of an update to the metadata of the file.
        pixels: whether the inputs are RGB pixels (n, 3, S, S) uint8, which the backbone takes normalized.
        weights: returns a context in which the model has the weights to export; by default its own.
    """

    def __init__(
        self,
        model: nn.Module,
        examples: Inputs,
        metadata: Callable[[int], Mapping[str, str]] = lambda num_update: {},
        pixels: bool = True,
        weights: Callable[[], AbstractContextManager] = nullcontext,
    ):
        self.model, self.examples, self.pixels, self.weights = model, examples, pixels, weights
        self.metadata = metadata

    @property
    def fits(self) -> bool:
        """Whether the weights fit into one file."""
        return 4 * sum(tensor.numel() for tensor in self.model.state_dict().values()) < LARGEST

    def __call__(self, num_update: int) -> bytes:
        """Returns the content of the file; changes neither the weights nor the mode of the model.

        Raises:
            ValueError: The file would exceed 2 GiB, ONNX lacks an operator, or the embeddings differ from PyTorch's by
                a cosine distance above 1e-4, see partial_fc.export.parity.
        """
        from partial_fc.export import parity

        with self.weights(), for_inference(self.model) as model:
            content, _ = self._content(model, num_update)

            def embed(inputs: Inputs) -> np.ndarray:
                embeddings: np.ndarray = model(self._prepared(inputs)).numpy()
                return embeddings

            if self.pixels:
                faces = self.examples.transpose(0, 2, 3, 1)
                parity.check_export(content, faces, lambda faces: embed(faces.transpose(0, 3, 1, 2)), "PyTorch", False)
            else:
                parity.check_named(content, self.examples, embed, "PyTorch")
        return content

    def validate_export(self) -> None:
        """Raises ValueError if onnxruntime cannot run the file; logs a warning if it has a later opset.

        Does not compare embeddings, because an untrained network may give large errors.
        """
        from partial_fc.export import parity
        from partial_fc.export.model import run_session

        with for_inference(self.model) as model:
            content, warning = self._content(model, 0)
        if warning:
            logging.warning("%s", warning)
        exported = (
            parity.check_form(content, raw_pixels=False) if self.pixels else parity.open_named(content, self.examples)
        )
        # Two items: the exporter has seen one, and a forward pass may have turned that number into a constant.
        run_session(exported.session, map_inputs(torch.Tensor.numpy, _by_name(self._example_items(2))), parity.NAME)

    def _content(self, model: nn.Module, num_update: int) -> tuple[bytes, str]:
        """Returns the content of the file and a warning about its opset, which may be empty."""
        # Imported here, because only rank 0 needs them, and the import takes longer than a step of a small network.
        import onnx

        from partial_fc.export.model_file import first_line

        def refusal(error: Exception) -> ValueError:
            return ValueError(f"this backbone cannot be exported to ONNX, opset {OPSET}: {first_line(error)}")

        if not self.fits:
            raise ValueError("the weights exceed the 2 GiB of an ONNX file: use the state_dict, backbone.pth")
        item, warning = self._example_items(1), ""
        if self.pixels:
            item = torch.zeros_like(item)
        try:
            model(item)
        except Exception as error:  # a user's forward pass may raise anything
            raise ValueError(
                "the backbone fails on one item, in evaluation mode on the CPU: "
                f"{type(error).__name__}: {first_line(error)}"
            ) from error
        try:
            file = _exported(model, item, OPSET)
        except torch.onnx.errors.UnsupportedOperatorError as unsupported:
            try:
                file = _exported(model, item, LATER_OPSET)
            except RuntimeError:  # no opset has it
                raise refusal(unsupported) from unsupported
            warning = f"{first_line(unsupported)}: the ONNX file has opset {LATER_OPSET}"
        except RuntimeError as error:
            raise refusal(error) from error
        exported = onnx.load_model_from_string(file)
        metadata = {EPS: repr(model.eps)} if isinstance(model, Backbone) else {}
        metadata |= {PIXELS: NORMALIZED} if self.pixels else {}
        onnx.helper.set_model_props(exported, {**metadata, **self.metadata(num_update)})
        return exported.SerializeToString(), warning

    def _example_items(self, count: int) -> Tensors:
        """Returns ``count`` items as the backbone takes them."""
        return self._prepared(map_inputs(lambda array: np.resize(array, (count, *array.shape[1:])), self.examples))

    def _prepared(self, inputs: Inputs) -> Tensors:
        """Returns inputs as the backbone takes them."""
        tensors = as_tensors(inputs)
        return normalized(tensors, torch.contiguous_format) if self.pixels else tensors


def export_onnx(
    module: nn.Module,
    path: str | os.PathLike[str],
    example: Inputs | torch.Tensor,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Writes a backbone to an ONNX file, after comparing the file's embeddings with PyTorch's.

    Changes neither the weights nor the mode of the module. An existing file is replaced once the new one is complete.

    Args:
        module: the backbone without DistributedDataParallel, on any device.
        path: path of the file.
        example: inputs of some items, an array or tensor (N, ...), or a dict of them for a module that takes a dict.
            RGB pixels (N, 3, S, S) uint8 are for a backbone that takes pixels / 127.5 - 1, as ours do: the file can
            then be given to `partial-fc embed` and `compare`.
        metadata: entries of the file's metadata.

    Raises:
        ValueError: See OnnxExport.
        OSError: The file cannot be written.
    """
    examples = map_inputs(np.asarray, example)
    pixels = isinstance(examples, np.ndarray) and examples.dtype == np.uint8
    content = OnnxExport(module, examples, lambda num_update: metadata or {}, pixels)(0)
    replace_file(os.fspath(path), [content])


class ByName(nn.Module):
    """Wraps a backbone that takes a dict; its inputs are the values, ordered by ``names``: a graph has no dicts."""

    def __init__(self, model: nn.Module, names: list[str]):
        super().__init__()
        self.model, self.names = model, names
        self.train(model.training)  # otherwise the exporter would leave the backbone in training mode

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        """Returns the embeddings (N, E)."""
        embeddings: torch.Tensor = self.model(dict(zip(self.names, tensors)))
        return embeddings


def _exported(model: nn.Module, item: Tensors, opset: int) -> bytes:
    """Returns the content of the file; ``item`` has the inputs of one item."""
    file, by_name = io.BytesIO(), _by_name(item)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the exporter warns that it is deprecated
        torch.onnx.export(
            ByName(model, list(item)) if isinstance(item, Mapping) else model,
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


@contextmanager
def for_inference(model: nn.Module) -> Iterator[nn.Module]:
    """A context in which the module is in evaluation mode on the CPU and computes in float32, without gradients.

    No second copy is made on its device. Parametrized tensors, as with spectral_norm, become constants: ONNX lacks
    operators that compute them.
    """
    with torch.no_grad(), borrowed(model, lambda tensor: tensor.detach().to("cpu", copy=True).contiguous()):
        model.eval()
        if isinstance(model, Backbone):
            model.fp16 = False
        for module in model.modules():
            if isinstance(module, parametrize.ParametrizationList):
                module.forward = partial(torch.Tensor.detach, module())
        yield model
