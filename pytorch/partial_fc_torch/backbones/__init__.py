"""Backbones as ``torch.nn.Module``, chosen by name: ``get_model("r50", num_features=512)``.

A file of this folder that has a dictionary ``NETWORKS``, from names to functions of `Options`, adds its networks: the
setting ``network`` and the planner know them without another line.
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
from partial_fc.utils.imports import import_object
from partial_fc.utils.user_code import errors_of

from .backbone import EPS, Backbone, Options

__all__ = ["EPS", "NETWORKS", "Backbone", "Options", "get_model", "network_with"]

TIMM = "timm:"  # before the name of a model of timm

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
        name: a key of `NETWORKS`, ``timm:name`` of a model of timm, or ``package.module:function`` of a function that
            is called with ``num_features``, ``image_size`` and ``sizes``, and with ``dropout`` unless it is 0.
        dropout: probability to drop an input of the fully connected layer, in [0, 1).
        fp16: computes the body under a float16 autocast of its own, as arcface_torch does. Not needed where the caller
            autocasts.
        num_features: E.
        image_size: S, a multiple of 16; None for the user's function of other inputs than images.
        eps: epsilon of the batch norms; 2e-5 for weights of MXNet's trainer.
        sizes: further arguments of the user's function.

    Returns:
        A `Backbone`, or the module of the user's function.

    Raises:
        ValueError: The name is unknown (the message has the nearest known one), a number is out of range, or the user's
            function fails.
    """
    _check_head(dropout, num_features)
    if ":" in name and not name.startswith(TIMM):
        return _own_model(name, num_features=num_features, image_size=image_size, dropout=dropout, **sizes)
    options = Options(num_features, dropout, fp16, _side_of_images(name, image_size))
    if name.startswith(TIMM):
        from .timm_model import TimmModel

        return TimmModel(options, name.removeprefix(TIMM))
    choose("network", name, NETWORKS)
    model = NETWORKS[name](options)
    model.eps = eps
    return model


def _check_head(dropout: float, num_features: int) -> None:
    if not 0.0 <= dropout < 1.0:
        raise ValueError(f"dropout is {dropout}, expected a number in [0, 1)")
    if num_features < 1:
        raise ValueError(f"num_features is {num_features}, expected a positive number of dimensions, usually 512")


def _side_of_images(name: str, image_size: int | None) -> int:
    if image_size is None:
        raise ValueError(f"network is {name!r}, which takes images: name one of this task as package.module:function")
    if image_size < 16 or image_size % 16:
        raise ValueError(f"image_size is {image_size}, expected a multiple of 16, usually 112")
    return image_size


def _own_model(name: str, **given: Any) -> nn.Module:
    sizes = {key: value for key, value in given.items() if value or key not in ("image_size", "dropout")}
    make = import_object(name, "network", nn.Module)
    with errors_of(f"network is {name!r}, which cannot be called with {', '.join(sizes)}"):
        model = make(**sizes)
    if not isinstance(model, nn.Module):
        raise ValueError(f"network is {name!r}, which returns {type(model).__name__}, expected a torch.nn.Module")
    return model


def network_with(shapes: Mapping[str, tuple[int, ...]], image_size: int) -> tuple[str, int] | None:
    """Returns name and E of the network whose state_dict has these keys and shapes; None if there is none.

    The keys may have a prefix, see prefix_of. If no network has the shapes, the first one that has the keys is
    returned. Counters of batch norms need not be there.
    """
    whole = _without_counters(shapes)
    same_keys = []
    for name in NETWORKS:
        *_, embedding = own = _keys_of(name)
        prefix = prefix_of(own, whole)
        if prefix is None:
            continue
        given = {key: whole[prefix + key] for key in own}
        same_keys.append((name, given[embedding][0]))
        with torch.device("meta"):
            sized = get_model(name, num_features=given[embedding][0], image_size=image_size).state_dict()
        if {key: tuple(value.shape) for key, value in _without_counters(sized).items()} == given:
            return same_keys[-1]
    return same_keys[0] if same_keys else None


@functools.cache
def _keys_of(name: str) -> tuple[str, ...]:
    with torch.device("meta"):
        return tuple(_without_counters(get_model(name, num_features=1).state_dict()))


def _without_counters(state: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in state.items() if not key.endswith(COUNTER)}
