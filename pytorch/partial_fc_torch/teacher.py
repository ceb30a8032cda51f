"""Distillation: the backbone learns from the embeddings of a trained model, the teacher, beside or without the softmax.

The loss of an item is 1 - cos(a, b) between its embedding a and the teacher's embedding b of the same augmented input.

Shapes: B batch or micro-batch of this rank, R ranks, N items, E embedding.
"""

import os
from collections.abc import Sequence

import numpy as np
import torch
from torch.nn.functional import cosine_similarity

from partial_fc.data.batch import Inputs, map_inputs, num_items
from partial_fc.distributed.collectives import Collectives
from partial_fc.distributed.consistency import arrays_digest
from partial_fc.export.item_model import ItemModel
from partial_fc.export.model import FaceModel
from partial_fc.export.model_file import find_model, model_files
from partial_fc.export.torch_files import CONFIG, is_torch_model
from partial_fc.utils.imports import code_in
from partial_fc.utils.json_object import read_object
from partial_fc.utils.user_code import described

from .backbones import Backbone
from .bank import TorchBank
from .batches import Tensors, as_tensors
from .collectives import average_tensors
from .memory_format import use_channels_last
from .partial_fc import PartialFC
from .pixels import normalized
from .pretrained import LARGEST, from_pretrained
from .published_files import read_centers
from .weights import parameter_arrays, statistic_arrays


class Teacher:
    """A trained model in evaluation mode; its embeddings have no gradient.

    Args:
        path: the output folder of a training, a file of PyTorch's weights, or an ONNX file, which onnxruntime runs. No
            code in a file is executed: the ONNX file of a folder is used if its network is the user's own.
        pixels: whether inputs are RGB pixels (B, 3, H, W) uint8, see Task.
        device: device of a model of PyTorch.

    Attributes:
        digest: digest of the weights.

    Raises:
        OSError: A file is missing or cannot be read.
        ValueError: A file is damaged, or its network is unknown.
    """

    def __init__(self, path: str, pixels: bool, device: torch.device):
        self.path, self.pixels, self.device = path, pixels, device
        if not os.path.exists(path):
            raise FileNotFoundError(
                f"the teacher {path} does not exist: set teacher to the output folder of a training, a file of weights "
                "or an .onnx file"
            )
        self._onnx: FaceModel | ItemModel | None = None
        if is_torch_model(path) and not (os.path.isdir(path) and _needs_code(path)):
            module = from_pretrained(path).requires_grad_(False)
            self.digest = arrays_digest({**parameter_arrays(module), **statistic_arrays(module)})
            self._module = module.to(device)
            if isinstance(module, Backbone):
                use_channels_last(module)
        else:
            file = find_model(path)
            self._onnx = (FaceModel if pixels else ItemModel).open(file)
            files = enumerate(model_files(file))
            self.digest = arrays_digest({str(number): np.fromfile(each, np.uint8) for number, each in files})

    @torch.no_grad()
    def embed(self, inputs: Tensors, on_device: Tensors) -> torch.Tensor:
        """Returns the embeddings (B, E) float32 on the device.

        Args:
            inputs: the inputs of a batch on the host.
            on_device: the same on the device; pixels are normalized.
        """
        if self._onnx is None:
            embeddings: torch.Tensor = self._module(on_device).float()
            return embeddings
        arrays = map_inputs(lambda tensor: tensor.numpy(), inputs)
        if self.pixels:
            arrays = arrays.transpose(0, 2, 3, 1)
        return torch.from_numpy(self._onnx.embed(arrays, num_items(arrays))).float().to(self.device)

    def check(self, examples: Inputs, embedding_size: int) -> None:
        """Raises ValueError if the teacher cannot embed some items, or not in ``embedding_size`` finite numbers."""
        inputs = as_tensors(examples)
        on_device = map_inputs(lambda tensor: tensor.to(self.device), inputs)
        try:
            embeddings = self.embed(inputs, normalized(on_device) if self.pixels else on_device)
        except Exception as error:  # the layers of a network raise all kinds of errors for inputs that do not fit
            raise ValueError(
                f"the teacher {self.path} cannot embed the items of this training: {described(error)}"
            ) from error
        if embeddings.shape[1] != embedding_size:
            raise ValueError(
                f"the embeddings of the teacher {self.path} have {embeddings.shape[1]} numbers, this training's have "
                f"{embedding_size}: set embedding_size={embeddings.shape[1]}"
            )
        if not embeddings.isfinite().all():
            raise ValueError(f"an embedding of the teacher {self.path} is not finite: set teacher to another model")


class Distillation:
    """The mean of 1 - cos(student, teacher) over the global batch, times a weight.

    Args:
        teacher: see Teacher.
        weight: factor of the loss.
        collectives: between the ranks.
    """

    def __init__(self, teacher: Teacher, weight: float, collectives: Collectives):
        self.teacher, self.weight, self._collectives = teacher, weight, collectives

    def gradient(self, features: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the gradient of the weighted loss by the student's features (B, E), and the loss without the weight.

        Both are for this rank's items; their means over the ranks are for the global batch.
        """
        features = features.detach().float().requires_grad_()
        loss = 1 - cosine_similarity(features, target).mean()
        (gradient,) = torch.autograd.grad(loss, features)
        return self.weight * gradient, loss.detach()

    def mean_loss(self, losses: Sequence[torch.Tensor]) -> torch.Tensor:
        """Returns the mean over micro-batches and ranks (all-reduce ``teacher``)."""
        loss = torch.stack(list(losses)).mean()
        if self._collectives.size > 1:
            with self._collectives.waiting("all-reduce teacher"):
                average_tensors([loss], self._collectives.size)
        return loss


def take_teacher_centers(path: str, layer: PartialFC) -> None:
    """Sets the class centers to the teacher's, which must have the same classes in the same order.

    Args:
        path: folder with the centers, or a file in it.
        layer: the layer that takes them.

    Raises:
        OSError: A file cannot be read.
        ValueError: There are no centers, or they have other sizes; names the folder.
    """
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    classes = read_centers(folder).without_states()
    try:
        TorchBank(layer).load_classes(classes)
    except ValueError as error:
        raise ValueError(f"cannot take the class centers in {folder}: {error}") from None


def _needs_code(folder: str) -> bool:
    """Returns whether the ``config.json`` in a folder names no network that can be built without the user's code."""
    path = os.path.join(folder, CONFIG)
    try:
        network = read_object(path, LARGEST).get("architecture")
    except FileNotFoundError:
        return False
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return network is None or any(code_in({"network": network}))
