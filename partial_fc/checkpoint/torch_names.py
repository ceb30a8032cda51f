"""Names of a backbone's arrays in checkpoints of MXNet and of PyTorch.

MXNet's names are ``arg:<name>`` (parameters), ``aux:<name>`` (running statistics) and ``state:<name>:<place>``
(momentum). PyTorch has the key of the state_dict as <name>. The numbers are the same (model_format.py), except that

- the batch norm of the embedding has the scale 1: MXNet ignores the stored one, PyTorch uses it;
- PyTorch counts the batches of a batch norm, but does not use the count if momentum is fixed;
- PyTorch has no momentum for what it does not train, such as that scale; MXNet has zeros.
"""

import re
from collections.abc import Callable, Collection, Mapping

import numpy as np

from partial_fc.utils.text import some

from .backbone_layers import ARRAYS, MXNET_TO_TORCH, SHARED, layers

Arrays = dict[str, np.ndarray]

COUNTER = "num_batches_tracked"
# Names of a backbone within other modules, such as DistributedDataParallel's or Lightning's.
PREFIX = re.compile(r"((module|model|backbone|network|net)\.)*")
# Scale and offset of the embedding's batch norm, which all networks of MXNet have.
SCALE, OFFSET = "arg:fc1_gamma", "arg:fc1_beta"


def torch_names(network: str) -> dict[str, str]:
    """Returns MXNet's ``arg:<name>`` or ``aux:<name>`` -> key of the state_dict, in the order of the layers."""
    return {
        mxnet.format(layer.mxnet): torch.format(layer.torch)
        for layer in layers(network)
        for mxnet, torch in ARRAYS[layer.kind].items()
    }


def with_torch_names(network: str, arrays: Mapping[str, np.ndarray]) -> Arrays:
    """Renames arrays from MXNet's to PyTorch's names; arrays with other names are returned as they are.

    Args:
        network: name of the backbone in PyTorch.
        arrays: arrays by name; float16 weights are replaced by their float32 master copies.

    Raises:
        ValueError: The arrays are not of this network; the message has the first names that differ.
    """
    if OFFSET not in arrays:
        return dict(arrays)
    weights = [name for name in arrays if not name.startswith("state:")]
    names = torch_names(network) if network in SHARED else {}
    require_same_names(
        names, weights, lambda: next((each for each in SHARED if torch_names(each).keys() == {*weights}), None)
    )
    renamed: Arrays = {}
    for mxnet, key in names.items():
        kind, _, name = mxnet.partition(":")
        master = master_copy(arrays, name)
        if master is None and f"state:{name}:1" in arrays:
            raise ValueError("it holds the state of another optimizer than SGD: to take the weights, use --pretrained")
        renamed[f"{kind}:{key}"] = arrays[mxnet] if master is None else master
        momentum = arrays.get(f"state:{name}:", arrays.get(f"state:{name}:0"))
        if momentum is not None:
            renamed[f"state:{key}:"] = momentum
    scale = f"arg:{names[SCALE]}"
    renamed[scale] = np.ones_like(renamed[scale])
    return renamed


def with_mxnet_names(network: str, arrays: Mapping[str, np.ndarray]) -> Arrays:
    """Renames arrays from PyTorch's to MXNet's names; arrays with other names are returned as they are.

    Raises:
        ValueError: The arrays are not of this network; the message has the first names that differ. Or the scale of the
            embedding's batch norm is not 1, which MXNet's network cannot compute.
    """
    names = {} if OFFSET in arrays else torch_names(MXNET_TO_TORCH.get(network, network))
    if f"arg:{names.get(OFFSET)}" not in arrays:
        return dict(arrays)
    keys = {mxnet: f"{mxnet.partition(':')[0]}:{key}" for mxnet, key in names.items()}
    weights = [name for name in arrays if name.startswith(("arg:", "aux:")) and not name.endswith(COUNTER)]
    require_same_names(list(keys.values()), weights)
    if (arrays[keys[SCALE]] != 1).any():
        raise ValueError(f"{names[SCALE]} is not 1 everywhere, but MXNet's {network} has no such scale")
    renamed = {mxnet: arrays[key] for mxnet, key in keys.items()}
    states = [name for name in arrays if name.startswith("state:")]
    # States of other optimizers than SGD have a longer name. MXNet's trainer refuses to resume with them, but can still
    # start from the weights.
    renamed |= {name: arrays[name] for name in states if not name.endswith(":")}
    if any(name.endswith(":") for name in states):
        for mxnet, key in names.items():
            kind, _, name = mxnet.partition(":")
            if kind == "arg":
                renamed[f"state:{name}:"] = arrays.get(f"state:{key}:", np.zeros_like(renamed[mxnet]))
    return renamed


def without_wrappers(name: str) -> str:
    """Returns a key of a state_dict without the prefixes of torch.compile, FSDP and activation checkpointing."""
    for wrapper in ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module."):
        name = name.replace(wrapper, "")
    return name


def prefix_of(expected: Collection[str], names: Collection[str]) -> str | None:
    """Returns the prefix of the expected keys in a state_dict, such as "", "module." or "model.backbone.".

    Keys without the prefix may be anything, such as a head beside the backbone. Returns None unless exactly one prefix
    has all expected keys and no other.
    """
    first, keys = next(iter(expected)), {*expected}
    prefixes = [
        prefix
        for prefix in {name.removesuffix(first) for name in names if name.endswith(first)}
        if PREFIX.fullmatch(prefix) and {name[len(prefix) :] for name in names if name.startswith(prefix)} == keys
    ]
    return prefixes[0] if len(prefixes) == 1 else None


def require_same_names(
    expected: Collection[str], names: Collection[str], find_network: Callable[[], str | None] = lambda: None
) -> None:
    """Raises ValueError, with the first missing and unexpected names, if weights do not have the expected names.

    Args:
        expected, names: expected and actual names of the arrays.
        find_network: returns the network that has these names, for the error; None if there is none.
    """
    missing = [name for name in expected if name not in names]
    unexpected = [name for name in names if name not in expected]
    problems = [f"lacks {some(missing)}"] if missing else []
    problems += [f"has the unexpected {some(unexpected)}"] if unexpected else []
    if problems:
        network, owner = find_network(), "another network"
        if network:
            owner = f"{network}: set network={network}; to continue the run, also set output to its folder"
        raise ValueError(f"it {' and '.join(problems)}: these are weights of {owner}")


def master_copy(arrays: Mapping[str, np.ndarray], name: str) -> np.ndarray | None:
    """Returns the float32 master copy that MXNet's SGD keeps of a float16 parameter; None if there is none."""
    array, master = arrays.get(f"arg:{name}"), arrays.get(f"state:{name}:1")
    if array is None or master is None or not np.array_equal(master.astype(np.float16), array.astype(np.float16)):
        return None
    return master
