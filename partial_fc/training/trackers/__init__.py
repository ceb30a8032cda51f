"""Trackers receive the figures of a training while it runs. This folder has a file for each; users may write others.

The setting ``trackers`` names them; `build_trackers` builds the container that the training logs to.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from pkgutil import resolve_name
from typing import Any

from partial_fc.utils.config import SettingsError, choose
from partial_fc.utils.imports import import_object
from partial_fc.utils.user_code import errors_of, make

from .container import Trackers
from .tracker import ScalarWriter, TrackedRun, Tracker

__all__ = ["TRACKERS", "ScalarWriter", "TrackedRun", "Tracker", "Trackers", "build_trackers", "find_tracker"]

# Name -> class in a module of this folder.
TRACKERS = {
    "tensorboard": "tensorboard:TensorBoard",
    "jsonl": "jsonl:JsonLines",
    "wandb": "weights_and_biases:WeightsAndBiases",
    "mlflow": "mlflow_runs:MlflowRuns",
    "trackio": "trackio_runs:TrackioRuns",
}


def build_trackers(
    names: Sequence[str], options: Mapping[str, Any], open_writer: Callable[[str, int], ScalarWriter]
) -> Trackers:
    """Builds the trackers of a training; nothing is written before `Trackers.begin`.

    Args:
        names: keys of TRACKERS, or the user's classes and functions as ``package.module:name``.
        options: keyword arguments; each is passed to every tracker that accepts it.
        open_writer: see Framework.

    Raises:
        ValueError: A tracker is unknown, its library is missing, or no tracker accepts an option.
    """
    makers = {name: find_tracker(name) for name in names}
    accepted = {}
    for name, maker in makers.items():
        with errors_of(f"trackers has {name}, which is not a class or function"):
            accepted[name] = inspect.signature(maker).parameters.keys()
    for option in options:
        if not any(option in parameters for parameters in accepted.values()):
            raise SettingsError(f"tracker_options has {option}, which none of the trackers takes: {', '.join(names)}")
    members = {}
    for name, maker in makers.items():
        arguments = {"open_writer": open_writer, **options}
        members[name] = make("trackers", name, maker, **{k: v for k, v in arguments.items() if k in accepted[name]})
    return Trackers(members)


def find_tracker(name: str) -> Callable[..., Tracker]:
    """Returns the class or function that makes a tracker; for the argument and errors see `build_trackers`."""
    maker: Callable[..., Tracker]
    if ":" in name:
        maker = import_object(name, "trackers", Tracker)
        return maker
    choose("tracker", name, TRACKERS)
    try:
        maker = resolve_name(f"{__name__}.{TRACKERS[name]}")
    except ModuleNotFoundError as error:
        raise ValueError(f"tracker {name} needs the package {error.name}: pip install {name}") from error
    return maker
