"""Backbones as ``torch.nn.Module``, chosen by name: ``get_model("r50", num_features=512)``.

A file in this folder adds networks in a dictionary ``NETWORKS`` that maps names to functions of `Options`. The setting
``network`` and the planner find them without further registration.
"""

import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from partial_fc.checkpoint.torch_names import COUNTER, prefix_of
from partial_fc.utils.config import choose
from partial_fc.utils.imports import OF_TIMM, import_object
from partial_fc.utils.user_code import errors_of

from .backbone import EPS, Backbone, Options

__all__ = ["EPS", "NETWORKS", "Backbone", "Options", "get_model", "network_with"]

TIMM = "timm:"  # prefix of the name of a model of timm

NETWORKS: dict[str, Callable[[Options], Backbone]] = {
    name: build
    for file in pkgutil.iter_modules(__path__, f"{__name__}.")
    for name, build in getattr(importlib.import_module(file.name), "NETWORKS", {}).items()
}


def get_model(
    name: str,
    *,
    dropout: float = 0.0,
    fp16: bool = False,
    num_features: int = 512,
    image_size: int | None = 112,
    eps: float = EPS,
    **sizes: Any,
) -> nn.Module:
    """Builds a backbone with new weights: images (B, 3, S, S), normalized as `Backbone` says -> embeddings (B, E).

    Args:
        name: a key of `NETWORKS`, ``timm:name`` for a model of timm, or ``package.module:function`` for a user's
            function, which is called with ``num_features``, ``image_size`` and ``sizes``, and with ``dropout`` unless
            it is 0.
        dropout: probability of dropping an input of the fully connected layer, in [0, 1).
        fp16: computes the body under float16 autocast, as arcface_torch does; not needed if the caller uses autocast.
        num_features: E.
        image_size: S, a multiple of 16; None if the user's function does not take images.
        eps: epsilon of the batch norms; 2e-5 for weights of MXNet's trainer.
        sizes: further arguments of the user's function.

    Returns:
        A `Backbone`, or the module of the user's function.

    Raises:
        ValueError: The name is unknown (the message suggests the nearest known one), a number is out of range, or the
            user's function fails.
    """
    if not 0.0 <= dropout < 1.0:
        raise ValueError(f"dropout is {dropout}, expected a number in [0, 1)")
    if num_features < 1:
        raise ValueError(f"num_features is {num_features}, expected a positive number of dimensions, usually 512")
    if ":" in name and not name.startswith(TIMM):
        arguments = {"num_features": num_features, **sizes}
        arguments |= {"image_size": image_size} if image_size else {}
        arguments |= {"dropout": dropout} if dropout else {}
        make = import_object(name, "network", nn.Module)
        with errors_of(f"network is {name!r}, which cannot be called with {', '.join(arguments)}"):
            module = make(**arguments)
        if not isinstance(module, nn.Module):
            raise ValueError(f"network is {name!r}, which returns {type(module).__name__}, expected a torch.nn.Module")
        return module
    if image_size is None:
        raise ValueError(f"network is {name!r}, which takes images: name one of this task as package.module:function")
    if image_size < 16 or image_size % 16:
        raise ValueError(f"image_size is {image_size}, expected a multiple of 16, usually 112")
    options = Options(num_features, dropout, fp16, image_size)
    if name.startswith(TIMM):
        from .timm_model import TimmModel

        return TimmModel(options, name.removeprefix(TIMM))
    choose("network", name, NETWORKS, OF_TIMM)
    model = NETWORKS[name](options)
    model.eps = eps
    return model


def network_with(shapes: Mapping[str, tuple[int, ...]], image_size: int) -> tuple[str, int] | None:
    """Returns the name and E of the network whose state_dict has these keys and shapes; None if there is none.

    The keys may have a prefix, see prefix_of. If no network has the shapes, the first network with these keys is
    returned. Counters of batch norms may be missing.
    """
    shapes = {key: shape for key, shape in shapes.items() if not key.endswith(COUNTER)}
    same_keys = []
    for name in NETWORKS:
        keys = tuple(_shapes_of(name, 1, 112))
        prefix = prefix_of(keys, shapes)
        if prefix is None:
            continue
        unprefixed = {key: shapes[prefix + key] for key in keys}
        embedding_size = unprefixed[keys[-1]][0]  # of the last layer
        same_keys.append((name, embedding_size))
        if _shapes_of(name, embedding_size, image_size) == unprefixed:
            return name, embedding_size
    return same_keys[0] if same_keys else None


@functools.lru_cache(maxsize=64)
def _shapes_of(name: str, embedding_size: int, image_size: int) -> dict[str, tuple[int, ...]]:
    """Returns the shapes in the state_dict of a network, without counters of batch norms."""
    with torch.device("meta"):
        state = get_model(name, num_features=embedding_size, image_size=image_size).state_dict()
    return {key: tuple(value.shape) for key, value in state.items() if not key.endswith(COUNTER)}
