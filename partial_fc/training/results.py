"""The results of a training so far, on rank 0, for the report, the log and the JSON files."""

import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from partial_fc.utils.text import plural

from .heads import Head
from .schedule import items_of_update
from .tasks.evaluation import Evaluation

# Curves of curves.json and of the report -> field of LossPoint.
SERIES = {
    "losses": "loss",
    "learning_rates": "learning_rate",
    "speeds": "samples_per_second",
    "waiting": "waiting",
}


class LossPoint(NamedTuple):
    """One log line: mean loss and speed of the updates since the previous line."""

    num_update: int  # number of the last of these updates
    loss: float  # mean over them
    samples_per_second: float  # items of all ranks per second
    waiting: float | None  # fraction of the time that the slowest rank waited for data; None if not measured
    learning_rate: float | None = None  # learning rate of the backbone in the last of these updates; None if not known
    head_losses: Mapping[str, float] = {}  # mean loss of each head, or of softmax and teacher, by name; else empty


def some_points(points: Sequence[LossPoint], most: int) -> list[LossPoint]:
    """Returns at most ``most`` points, fewer if each has losses of heads; evenly spaced and with the last one."""
    most //= 1 + max((len(point.head_losses) for point in points[-1:]), default=0)
    every = -(-len(points) // most) or 1
    return [*points[::-1][::every][::-1]]


class SetResult(NamedTuple):
    """Results on a held-out set."""

    evaluation: Evaluation  # the evaluation, which also keeps details of the last verification
    points: Sequence[Any]  # points of all verifications, one or more
    problems: Sequence[str]  # problems that the last verification shows, one sentence each

    @property
    def best(self) -> Any:
        """The best point."""
        return self.evaluation.best(self.points)

    @property
    def value(self) -> float:
        """First figure of the last point."""
        return self.evaluation.value(self.points[-1])

    @property
    def best_value(self) -> float:
        """First figure of the best point."""
        return self.evaluation.value(self.best)


class TrainingResult(NamedTuple):
    """A training, finished or not."""

    folder: str  # output folder
    settings: Mapping[str, Any]
    ranks: int  # number of ranks
    updates: int  # number of updates
    seconds: float  # total time, including verification and saving
    training_seconds: float  # time without verification and saving
    losses: Sequence[LossPoint]  # one LossPoint per log line
    waiting: float | None  # fraction of training_seconds spent waiting for data; None if not measured
    sets: Mapping[str, SetResult]  # results on the held-out sets, by name
    suggestion: str  # settings to change if there are problems
    baselines: Mapping[str, float]  # figures without training, by name
    skipped: int  # number of bad items skipped on all ranks together
    missing: Sequence[str]  # paths of held-out sets that do not exist
    versions: Mapping[str, str]  # versions of the software that affects the numbers
    heads: Sequence[Head] = ()  # all heads; none or one without a name if the training has no ``heads``
    defaults: Mapping[str, Any] = MappingProxyType({})  # declared defaults of settings

    @property
    def title(self) -> str:
        """Title of the report."""
        return f"{os.path.basename(self.folder)}, {plural(self.ranks, 'rank')}"

    @property
    def problems(self) -> dict[str, Sequence[str]]:
        """Problems by set, without sets that have none."""
        return {name: result.problems for name, result in self.sets.items() if result.problems}

    @property
    def series(self) -> dict[str, list[tuple[int, float | None]]]:
        """(update, value) of each log line, by the names of SERIES."""
        return {
            name: [(point.num_update, getattr(point, field)) for point in self.losses] for name, field in SERIES.items()
        }

    @property
    def head_losses(self) -> dict[str, list[tuple[int, float | None]]]:
        """(update, loss) of each log line by name, for the names of the last one; see LossPoint."""
        names = self.losses[-1].head_losses if self.losses else ()
        return {name: [(point.num_update, point.head_losses.get(name)) for point in self.losses] for name in names}

    def summary(self) -> dict[str, Any]:
        """Returns the content of ``summary.json``."""
        settings = self.settings
        timed = self.losses[-1].num_update if self.losses else 0  # updates within training_seconds
        of_update = sum(items_of_update(head.settings) for head in self.heads) or items_of_update(settings)
        items = timed * of_update * self.ranks
        return {
            "dataset": settings["dataset"],
            "task": settings["task"],
            "network": settings["network"],
            "loss": settings["loss"],
            "ranks": self.ranks,
            "sample_ratio": settings["sample_ratio"],
            "updates": self.updates,
            "seconds": round(self.seconds, 3),
            "samples_per_second": round(items / self.training_seconds, 2) if self.training_seconds else None,
            "waiting_for_data": self.waiting,
            "skipped_images": self.skipped,  # name in the first versions
            "skipped_samples": self.skipped,
            "final_loss": self.losses[-1].loss if self.losses else None,
            **({"final_losses": dict(self.losses[-1].head_losses)} if self.head_losses else {}),
            "verification": {name: set_result.value for name, set_result in self.sets.items()},
            "verification_details": {
                name: {**set_result.points[-1]._asdict(), "best": set_result.best_value}
                for name, set_result in self.sets.items()
            },
            "baselines": self.baselines,
            "problems": self.problems,
            "suggestion": self.suggestion if self.problems else None,
            "versions": self.versions,
        }
