"""A backbone in the files that other libraries load, ``model.safetensors`` and ``config.json``; from_pretrained."""

import json
import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from partial_fc import __version__
from partial_fc.export.torch_files import CONFIG
from partial_fc.settings.declarations import SETTINGS
from partial_fc.training.saved_training import Pretrained
from partial_fc.utils.config import Setting
from partial_fc.utils.imports import code_in
from partial_fc.utils.json_object import read_object
from partial_fc.utils.text import some

from .backbones import EPS, NETWORKS, Backbone, get_model, network_with
from .published_files import read_pretrained
from .weights import matching_state, set_weights

LARGEST = 2**20  # bytes of a config.json
EPS_SETTING = Setting("eps", EPS, "", above=0, at_most=1)


def config_content(
    architecture: str | None, model: nn.Module, num_features: int, sizes: Mapping[str, Any], training: Mapping[str, str]
) -> bytes:
    """Returns a ``config.json``, from which from_pretrained builds the backbone.

    Args:
        architecture: name for get_model; None for a module that only the user can build.
        model: the backbone.
        num_features, sizes: arguments of get_model. With an ``image_size``, the backbone takes pixels.
        training: origin of the weights, and their figures.
    """
    side = sizes.get("image_size")
    pixels = {"color": "RGB", "layout": "NCHW", "size": [side, side], "mean": [127.5] * 3, "std": [127.5] * 3}
    config = {
        "library_name": "partial_fc",
        "partial_fc_version": __version__,
        "architecture": architecture,
        "num_features": num_features,
        "sizes": dict(sizes),
        "eps": model.eps if isinstance(model, Backbone) else None,
        "preprocessing": pixels if side else None,
        "license": None,
        "training": dict(training),
    }
    return (json.dumps(config, indent=2, default=repr) + "\n").encode()


def weights_content(state: Mapping[str, torch.Tensor]) -> bytes:
    """Returns a state_dict as the content of a file of safetensors, which has no tensors that share memory."""
    import safetensors.torch

    first: dict[int, str] = {}
    alone = {
        name: tensor if first.setdefault(tensor.untyped_storage().data_ptr(), name) == name else tensor.clone()
        for name, tensor in state.items()
    }
    content: bytes = safetensors.torch.save(alone, {"format": "pt"})
    return content


def from_pretrained(path: str | os.PathLike, *, model: nn.Module | None = None, trust_code: bool = False) -> nn.Module:
    """Returns a trained backbone in evaluation mode, on the CPU.

    It maps images (B, 3, S, S), RGB, ``(x - 127.5) / 127.5``, to embeddings (B, E), which do not have unit length.
    Backbones of other tasks take the inputs of their task.

    Args:
        path: output folder of a training, a copy of it from a model hub, or a file of weights in it. Without a
            ``config.json`` the network is recognized by its layers, for images of 112 x 112.
        model: a module to load the weights into; needed if the training was given a module.
        trust_code: allows a ``config.json`` that names a user's function, which is imported and run.

    Raises:
        OSError: A file is missing or cannot be read.
        ValueError: A file is damaged, or the weights belong to another network.
    """
    path = os.fspath(path)
    saved = read_pretrained(path, with_classes=False)
    if saved is None:
        raise ValueError(
            f"{path} is no folder with model.safetensors or backbone.pth, and no such file: give the output folder of "
            "a training, or download one with huggingface_hub.snapshot_download"
        )
    name = ""
    if model is None:
        config = os.path.join(path if os.path.isdir(path) else os.path.dirname(path), CONFIG)
        name, model = _built(config, saved, trust_code) if os.path.exists(config) else recognized(saved, 112)
    try:
        set_weights(model, saved.weights, name)
    except ValueError as error:
        raise ValueError(f"{saved.source}: {error}") from error
    return model.eval()


def recognized(saved: Pretrained, image_size: int) -> tuple[str, nn.Module]:
    """Returns the name of the network whose layers were saved, and the network with new weights."""
    shapes = {name.partition(":")[2]: array.shape for name, array in saved.weights.items()}
    match = network_with(shapes, image_size)
    if match is None:
        raise ValueError(
            f"{saved.source} has {some(list(shapes))}, which are the layers of none of {', '.join(NETWORKS)}: export "
            "your own network with torch.onnx"
        )
    network, embedding_size = match
    return network, get_model(network, num_features=embedding_size, image_size=image_size)


def _built(path: str, saved: Pretrained, trust_code: bool) -> tuple[str, nn.Module]:
    """Returns the name of the network that a ``config.json`` describes, and the network with new weights."""
    try:
        config = read_object(path, LARGEST)
        name, features, sizes = (config.get(key) for key in ("architecture", "num_features", "sizes"))
        if not (isinstance(name, str) and isinstance(features, int) and isinstance(sizes, dict)):
            raise ValueError("it names no network that can be built: give the module as model=")
        if not trust_code and (code := [*code_in({"network": name})]):
            raise ValueError(f"it would import and run {code[0][1]}: use the ONNX file, or set trust_code=True")
        if not any(features in array.shape for array in saved.weights.values()):  # before memory is allocated for it
            raise ValueError(f"its num_features is {features}, which no weight has")
        eps = EPS_SETTING.check(config.get("eps") or EPS)
        arguments = {"image_size": None, **sizes, "num_features": features, "eps": eps}
        if arguments["image_size"] is not None:  # of which timm's models may have a weight
            SETTINGS.settings["image_size"].check(arguments["image_size"])
        if name in NETWORKS:
            with torch.device("meta"):
                matching_state(get_model(name, **arguments), saved.weights, name)
        return name, get_model(name, **arguments)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from error
