"""Exports a backbone to ONNX and compares the embeddings with PyTorch's.

The file takes normalized pixels ``data`` (batch, 3, S, S), as the files of arcface_torch, and has opset 11, which
onnxruntime 1.6 reads. PyTorch's exporter of TorchScript writes it: the other one has no opset below 18.

Shapes: N faces, S image size, E embedding.
"""

import copy
import io
import warnings
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import nn

from partial_fc.export.onnx import BATCH, INPUT, OPSET

from .backbones import Backbone
from .pixels import normalized, to_images

OUTPUT = "embedding"
EPS = "bn_eps"  # in the metadata
LARGEST = 2**31  # bytes of a file in protobuf's format


class OnnxExport:
    """Makes the ONNX file and compares it with PyTorch on random images and on faces.

    Args:
        model: the backbone, without DistributedDataParallel around it, on any device: normalized images (N, 3, S, S) to
            embeddings (N, E).
        image_size: S.
        faces: (n, S, S, 3) uint8 RGB faces; None for none.
        metadata: num_update -> metadata of the file, by name; None for none.
    """

    def __init__(
        self,
        model: nn.Module,
        image_size: int,
        faces: np.ndarray | None = None,
        metadata: Callable[[int], Mapping[str, str]] | None = None,
    ):
        self.model, self.image_size = model, image_size
        self.faces = np.empty((0, image_size, image_size, 3), np.uint8) if faces is None else faces
        self.metadata = metadata or (lambda num_update: {})

    @property
    def fits(self) -> bool:
        """Whether the weights fit into one file."""
        return 4 * sum(tensor.numel() for tensor in self.model.state_dict().values()) < LARGEST

    def __call__(self, num_update: int) -> bytes:
        """Returns the bytes of the file; neither the weights nor the mode of the model change.

        Raises:
            ValueError: It would exceed 2 GiB, an operator has no counterpart in ONNX, or the embeddings differ from
                PyTorch's by a cosine distance above 1e-4, see `partial_fc.inference.parity.check_export`.
        """
        from partial_fc.inference.parity import check_export

        model = inference_copy(self.model)
        content = self._content(model, num_update)
        check_export(content, self.faces, lambda faces: _embed(model, faces), "PyTorch", raw_pixels=False)
        return content

    def validate_export(self) -> None:
        """Checks that onnxruntime loads the file, else ValueError. An untrained network may be chaotic."""
        from partial_fc.inference.parity import check_form

        check_form(self._content(inference_copy(self.model), 0), raw_pixels=False)

    def _content(self, model: nn.Module, num_update: int) -> bytes:
        # Imported here: only rank 0 needs them, and loading takes longer than a step of a small network.
        import onnx

        from partial_fc.inference.model import first_line

        if not self.fits:
            raise ValueError("the weights exceed the 2 GiB of an ONNX file: take the state_dict, backbone.pth")
        file = io.BytesIO()
        images = torch.zeros(1, 3, self.image_size, self.image_size)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of the exporter, about itself
            try:
                torch.onnx.export(
                    model,
                    (images,),
                    file,
                    dynamo=False,
                    opset_version=OPSET,
                    input_names=[INPUT],
                    output_names=[OUTPUT],
                    dynamic_axes={INPUT: {0: BATCH}, OUTPUT: {0: BATCH}},
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


def inference_copy(model: nn.Module) -> nn.Module:
    """Returns a copy in eval mode on the CPU that computes in float32, without a second copy on the model's device."""
    memo: dict[int, object] = {id(tensor): tensor.detach().to("cpu", copy=True) for tensor in model.buffers()}
    for tensor in model.parameters():
        memo[id(tensor)] = nn.Parameter(tensor.detach().to("cpu", copy=True), tensor.requires_grad)
    copied = copy.deepcopy(model, memo).eval()
    if isinstance(copied, Backbone):
        copied.fp16 = False
    return copied


def _embed(model: nn.Module, faces: np.ndarray) -> np.ndarray:
    """Returns (N, E) of faces (N, S, S, 3), uint8 or float32."""
    with torch.no_grad():
        embeddings: np.ndarray = model(normalized(to_images(torch.from_numpy(faces)))).numpy()
    return embeddings
