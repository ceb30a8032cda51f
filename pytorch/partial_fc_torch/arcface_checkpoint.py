"""``checkpoint_gpu_<r>.pt``, which arcface_torch writes after an epoch, as a checkpoint to resume from.

The file of rank r is a dictionary:

- ``epoch``: number of epochs done; ``global_step``: number of batches;
- ``state_dict_backbone``: weights, the same in all files, and the running statistics of rank r;
- ``state_dict_softmax_fc``: ``weight`` (L, E), the centers of rank r, whose classes follow those of rank r - 1;
- ``state_optimizer``: state_dict of torch.optim.SGD or AdamW over the parameters of the backbone and then ``weight``;
- ``state_lr_scheduler``: with ``_last_lr``, the rates of the next batch.

Shapes: L classes of a rank, E embedding.
"""

import os
from collections.abc import Mapping, Sequence
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

from .layer.center_files import load_tensors
from .optimizers.backbone_optimizer import MOMENTUM, STATE
from .published_files import IN_ARCFACE_CHECKPOINT, center_rows
from .weights import to_array

Arrays = dict[str, np.ndarray]
State = Mapping[str, Any]

PARTS = ("state_dict_backbone", "state_dict_softmax_fc", "state_optimizer", "state_lr_scheduler")
STATISTICS = ("running_mean", "running_var")
# Name of a state of ``weight`` -> that of a row of the bank; AdamW counts the updates of each row here.
OF_CENTERS = {
    MOMENTUM: "weight_mom",
    "exp_avg": "weight_exp_avg",
    "exp_avg_sq": "weight_exp_avg_sq",
    "step": "weight_updates",
}


def read_checkpoint(path: str, gradient_acc: int) -> ForeignCheckpoint | None:
    """Reads the files of all ranks, see Framework.read_checkpoint. No code in a file is run.

    Args:
        path: of one of the files, or of their folder.
        gradient_acc: batches of an update, which the file does not say.

    Raises:
        OSError: A file is missing or cannot be read.
        ValueError: One is damaged, holds something else, or is of another training or moment than that of rank 0.
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
    moments = [(state["epoch"], state["global_step"]) for state in states]
    if len(set(moments)) > 1:
        raise ValueError(f"{folder}: its files are of different (epoch, global_step): {sorted(set(moments))}")
    weight = [center_rows(each, state, *IN_ARCFACE_CHECKPOINT) for each, state in zip(paths, states)]
    of_centers = [_read(each, state, _center_states) for each, state in zip(paths, states)]
    taken = all(of_rank.keys() == of_centers[0].keys() for of_rank in of_centers)
    SavedClasses.of_ranks(folder, [[rows] for rows in weight], [])  # checks that they are of one training
    names = of_centers[0] if taken else {}
    classes = SavedClasses({"weight": weight, **{name: [of_rank[name] for of_rank in of_centers] for name in names}})
    for each, state in zip(paths, states):
        check_finite(each, _read(each, state, _statistics))
    # A copy would stay in memory with the plan of the training.
    check_finite(paths[0], _read(paths[0], states[0], _backbone))
    epoch, step = moments[0]
    manifest = _manifest(epoch, step // gradient_acc, weight, classes)
    messages = _messages(states[0], len(paths), bool(names))
    return ForeignCheckpoint(manifest, partial(_arrays_of_rank, states), classes, messages)


def _manifest(epoch: int, num_update: int, weight: list[np.ndarray], classes: SavedClasses) -> Manifest:
    """Describes the centers of all ranks at the start of an epoch."""
    stops = np.cumsum([len(rows) for rows in weight]).tolist()
    return Manifest(
        num_update=num_update,
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


def _load(path: str) -> State:
    state = load_tensors(path)
    missing = [part for part in PARTS if not isinstance(state, Mapping) or not isinstance(state.get(part), Mapping)]
    if missing:
        raise ValueError(
            f"{path} has no {missing[0]}, and is no checkpoint of arcface_torch: to start from its weights, use "
            "--pretrained"
        )
    for name in ("epoch", "global_step"):
        if type(state.get(name)) is not int or state[name] < 0:
            raise ValueError(f"{path}: its {name} is {str(state.get(name))[:40]}, expected a count")
    return state


def _read(path: str, state: State, read: Any) -> Any:
    try:
        return read(state)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        text = f"no {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"{path} is no checkpoint of arcface_torch: {text}") from None


def _parameters(state: State) -> list[str]:
    """The keys of the backbone's parameters, in the order of the module and so of the optimizer."""
    return [key for key in state["state_dict_backbone"] if key.rpartition(".")[2] not in (*STATISTICS, COUNTER)]


def _optimizer_states(state: State) -> list[dict[str, Any]]:
    """The states of all parameters in order, the last one those of the centers."""
    optimizer = state["state_optimizer"]
    order = [index for group in optimizer["param_groups"] for index in group["params"]]
    expected = len(_parameters(state)) + 1
    if len(order) != expected:
        raise ValueError(f"its optimizer has {len(order)} parameters, expected {expected}, the last one the centers")
    states = [optimizer["state"].get(index, {}) for index in order]
    return [{key: value for key, value in of_one.items() if value is not None} for of_one in states]


def _center_states(state: State) -> Arrays:
    """State of a row -> (L, E) or (L, 1); empty where the file has those of sampled centers alone, or none."""
    shape, states = state["state_dict_softmax_fc"]["weight"].shape, _optimizer_states(state)[-1]
    arrays: Arrays = {}
    if not states.keys() <= OF_CENTERS.keys():
        raise ValueError(f"its optimizer has {', '.join(map(str, states))} of the centers, and is not SGD or AdamW")
    for key, value in states.items():
        name = OF_CENTERS[key]
        if key == "step":
            arrays[name] = np.broadcast_to(np.float32(value), (shape[0], 1))
        elif value.shape != shape:
            return {}
        else:
            arrays[name] = value.detach().float().numpy()
    return arrays


def _backbone(state: State) -> Arrays:
    """Parameters, counters, and states of the optimizer; those of a parameter without gradients are zero."""
    values = state["state_dict_backbone"]
    arrays = {f"arg:{key}": to_array(value) for key, value in values.items() if not key.endswith(STATISTICS)}
    parameters, states = _parameters(state), _optimizer_states(state)[:-1]
    shapes = {key: np.shape(value) for of_one in states for key, value in of_one.items()}
    for key, of_one in zip(parameters, states):
        for kind, shape in shapes.items():
            own = shape if shape == () else values[key].shape
            value = of_one.get(kind, np.zeros(own, np.float32))
            if np.shape(value) != own:
                raise ValueError(f"the {kind} of {key} has the shape {np.shape(value)}, expected {tuple(own)}")
            array = to_array(value) if isinstance(value, torch.Tensor) else np.asarray(value)
            arrays[STATE.format(key, "" if kind == MOMENTUM else kind)] = array
    return arrays


def _statistics(state: State) -> Arrays:
    values = state["state_dict_backbone"]
    return {f"aux:{key}": to_array(value) for key, value in values.items() if key.endswith(STATISTICS)}


def _arrays_of_rank(states: Sequence[State], rank: int, size: int) -> Arrays:
    own = [states[rank]] if size == len(states) else states
    return {**_backbone(states[0]), **mean_statistics([_statistics(state) for state in own])}


def _messages(state: State, ranks: int, has_center_states: bool) -> list[str]:
    epoch, step, rates = state["epoch"], state["global_step"], state["state_lr_scheduler"].get("_last_lr")
    messages = [
        f"arcface_torch's training of {plural(ranks, 'process', 'processes')} goes on after {plural(epoch, 'epoch')} "
        f"and {plural(step, 'batch', 'batches')}. Its files have no position inside an epoch, no random state and no "
        f"loss scale: epoch {epoch} begins with its first image, and other negatives are drawn",
        f"its next learning rates are {str(rates)[:100]}; here the schedule of these settings decides",
    ]
    if not has_center_states:
        messages.append(
            "their optimizer has no state of every class center, as with the sampled layers of 2022, which do not save "
            "which centers a state is of: the states of the centers begin at zero"
        )
    return messages
