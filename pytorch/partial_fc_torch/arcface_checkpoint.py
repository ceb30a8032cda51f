"""Reads ``checkpoint_gpu_<r>.pt``, which arcface_torch writes after an epoch, as a checkpoint to resume from.

The file of rank r is a dictionary:

- ``epoch``: number of epochs done; ``global_step``: number of batches;
- ``state_dict_backbone``: weights, the same in all files, and the running statistics of rank r;
- ``state_dict_softmax_fc``: ``weight`` (L, E), the centers of rank r, whose classes follow those of rank r - 1;
- ``state_optimizer``: state_dict of torch.optim.SGD or AdamW over the parameters of the backbone and then ``weight``;
- ``state_lr_scheduler``: includes ``_last_lr``, the learning rates of the next batch.

Shapes: L classes of a rank, E embedding.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from partial_fc.checkpoint import Manifest, SavedClasses, check_finite
from partial_fc.checkpoint.backbone import mean_statistics
from partial_fc.checkpoint.layout import MANIFEST
from partial_fc.checkpoint.model_format import TORCH
from partial_fc.checkpoint.rank_files import ARCFACE_CHECKPOINT, files_of_ranks, is_of_a_rank
from partial_fc.checkpoint.torch_names import COUNTER
from partial_fc.training.saved_training import ForeignCheckpoint
from partial_fc.utils.text import plural

from .center_files import load_tensors
from .optimizers.backbone_optimizer import MOMENTUM, STATE
from .published_files import CENTERS_KEYS, center_rows
from .weights import to_array

Arrays = dict[str, np.ndarray]
State = Mapping[str, Any]

PARTS = ("state_dict_backbone", "state_dict_softmax_fc", "state_optimizer", "state_lr_scheduler")
STATISTICS = ("running_mean", "running_var")
# State of ``weight`` in torch.optim -> state in our bank, where AdamW counts the updates per row.
CENTER_STATES = {
    MOMENTUM: "weight_mom",
    "exp_avg": "weight_exp_avg",
    "exp_avg_sq": "weight_exp_avg_sq",
    "step": "weight_updates",
}


def read_checkpoint(path: str, gradient_acc: int) -> ForeignCheckpoint | None:
    """Reads the files of all ranks, see Framework.read_checkpoint. Runs no code from a file.

    Args:
        path: path of one of the files, or of their folder.
        gradient_acc: batches per update, which the files do not contain.

    Raises:
        OSError: A file is missing or cannot be read.
        ValueError: A file is damaged, is not a checkpoint of arcface_torch, or was saved by another training, or at
            another step, than the file of rank 0.
    """
    folder = path
    if is_of_a_rank(path, ARCFACE_CHECKPOINT):
        folder = os.path.dirname(path) or "."
    elif os.path.exists(os.path.join(path, MANIFEST)):
        return None
    paths = files_of_ranks(folder, ARCFACE_CHECKPOINT) if os.path.isdir(folder) else []
    if not paths:
        return None
    states = [_load(each) for each in paths]
    moments = sorted({(state["epoch"], state["global_step"]) for state in states})
    if len(moments) > 1:
        raise ValueError(f"{folder}: its files are of different (epoch, global_step): {moments}")
    weight = [center_rows(each, state, *CENTERS_KEYS) for each, state in zip(paths, states)]
    SavedClasses.of_ranks(folder, [[rows] for rows in weight], [])  # checks that they belong to one training
    by_rank = [_checked(each, _center_states, state) for each, state in zip(paths, states)]
    has_states = all(of_rank.keys() == by_rank[0].keys() for of_rank in by_rank)
    names = list(by_rank[0]) if has_states else []
    classes = SavedClasses({"weight": weight, **{name: [of_rank[name] for of_rank in by_rank] for name in names}})
    for each, state in zip(paths, states):
        check_finite(each, _checked(each, _statistics, state))
    # Only checked here and built again when needed: a copy would stay in memory during the training.
    check_finite(paths[0], _checked(paths[0], _backbone, states[0]))
    ((epoch, step),) = moments
    stops = np.cumsum([len(rows) for rows in weight]).tolist()
    manifest = Manifest(
        num_update=step // gradient_acc,
        num_classes=stops[-1],
        embedding_size=weight[0].shape[1],
        ranks=len(weight),
        shards=list(zip([0, *stops], stops)),
        files={},
        state={
            "num_epoch": epoch,
            "data": {"epoch": epoch, "images": 0},
            "conventions": TORCH.to_json(),
            "center_widths": classes.widths,
        },
        rank_states=[{} for _ in weight],
        origin={},
    )
    messages = [
        f"arcface_torch's training of {plural(len(paths), 'process', 'processes')} goes on after "
        f"{plural(epoch, 'epoch')} and {plural(step, 'batch', 'batches')}. Its files have no position within an "
        f"epoch, no random state and no loss scale: epoch {epoch} starts at its first image with other negatives",
        f"its next learning rates are {str(states[0]['state_lr_scheduler'].get('_last_lr'))[:100]}; here the schedule "
        "of these settings determines them",
    ]
    if not names:
        messages.append(
            "its optimizer has no state for every class center, as with the sampled layers of 2022, which do not save "
            "the classes of their states: the states of the centers start at zero"
        )
    return ForeignCheckpoint(manifest, partial(_arrays_of_rank, states), classes, messages)


def _load(path: str) -> State:
    state = load_tensors(path)
    missing = [part for part in PARTS if not isinstance(state, Mapping) or not isinstance(state.get(part), Mapping)]
    if missing:
        raise ValueError(
            f"{path} has no {missing[0]}, so it is not a checkpoint of arcface_torch: to start from its weights, use "
            "--pretrained"
        )
    for name in ("epoch", "global_step"):
        if type(state.get(name)) is not int or state[name] < 0:
            raise ValueError(f"{path}: its {name} is {str(state.get(name))[:40]}, expected a count")
    return state


def _checked(path: str, read: Callable[[State], Arrays], state: State) -> Arrays:
    """Returns ``read(state)``; the file may contain any types, so every error names the file."""
    try:
        return read(state)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        text = f"no {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"{path} is not a checkpoint of arcface_torch: {text}") from None


def _parameters(state: State) -> list[str]:
    """Returns the names of the backbone's parameters in the module's order, which is the optimizer's, too."""
    return [key for key in state["state_dict_backbone"] if key.rpartition(".")[2] not in (*STATISTICS, COUNTER)]


def _optimizer_states(state: State) -> list[dict[str, Any]]:
    """Returns the optimizer states of all parameters in order; the last entry is for the centers."""
    optimizer = state["state_optimizer"]
    order = [index for group in optimizer["param_groups"] for index in group["params"]]
    expected = len(_parameters(state)) + 1
    if len(order) != expected:
        raise ValueError(f"its optimizer has {len(order)} parameters, expected {expected}, the last one the centers")
    states = [optimizer["state"].get(index, {}) for index in order]
    return [{key: value for key, value in of_parameter.items() if value is not None} for of_parameter in states]


def _center_states(state: State) -> Arrays:
    """Returns name -> (L, E) or (L, 1); empty if the file has no states, or states of sampled centers only."""
    shape, states = state["state_dict_softmax_fc"]["weight"].shape, _optimizer_states(state)[-1]
    arrays: Arrays = {}
    if not states.keys() <= CENTER_STATES.keys():
        raise ValueError(f"its optimizer has {', '.join(map(str, states))} of the centers, so it is not SGD or AdamW")
    for key, value in states.items():
        name = CENTER_STATES[key]
        if key == "step":
            arrays[name] = np.broadcast_to(np.float32(value), (shape[0], 1))
        elif value.shape != shape:
            return {}
        else:
            arrays[name] = value.detach().float().numpy()
    return arrays


def _backbone(state: State) -> Arrays:
    """Returns parameters, counters and optimizer states; the states of a parameter without gradients are zero."""
    values = state["state_dict_backbone"]
    arrays = {f"arg:{key}": to_array(value) for key, value in values.items() if not key.endswith(STATISTICS)}
    parameters, states = _parameters(state), _optimizer_states(state)[:-1]
    shapes = {kind: np.shape(value) for of_parameter in states for kind, value in of_parameter.items()}
    for key, of_parameter in zip(parameters, states):
        for kind, shape in shapes.items():
            expected = shape if shape == () else values[key].shape
            value = of_parameter.get(kind, np.zeros(expected, np.float32))
            if np.shape(value) != expected:
                raise ValueError(f"the {kind} of {key} has the shape {np.shape(value)}, expected {tuple(expected)}")
            array = to_array(value) if isinstance(value, torch.Tensor) else np.asarray(value)
            arrays[STATE.format(key, "" if kind == MOMENTUM else kind)] = array
    return arrays


def _statistics(state: State) -> Arrays:
    values = state["state_dict_backbone"]
    return {f"aux:{key}": to_array(value) for key, value in values.items() if key.endswith(STATISTICS)}


def _arrays_of_rank(states: Sequence[State], rank: int, size: int) -> Arrays:
    """Returns the arrays with the running statistics of ``rank``, or with their mean if the number of ranks differs."""
    sources = [states[rank]] if size == len(states) else states
    return {**_backbone(states[0]), **mean_statistics([_statistics(state) for state in sources])}
