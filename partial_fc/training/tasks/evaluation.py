"""The interface of an evaluation: a held-out set, and the figures measured on it during training."""

from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from partial_fc.data.batch import Inputs
from partial_fc.distributed.collectives import Collectives
from partial_fc.training.embedder import Embedder

UNTRAINED = "untrained"  # name of the untrained network's baseline


class Evaluation:
    """A held-out set of a task; every rank has one. A subclass has ``figures`` and `measure`.

    Attributes:
        figures: names of the measured figures. The first figure decides which verification is the best.
        higher_is_better: whether the highest first figure is the best.
        shares: the figures between 0 and 1, which reports show in percent.
        paths: files that the set is read from. If one is missing on a host, the set is left out, with a warning.
    """

    figures: Sequence[str]
    higher_is_better = True
    shares: Sequence[str] = ()
    paths: Sequence[str] = ()

    def prepare(self, name: str, collectives: Collectives) -> None:
        """Reads what `measure` needs before the training starts, so that damaged files are reported early.

        Called on all ranks. Read files in ``collectives.run_on_all_ranks(f"read.{name}", ...)``, which raises the
        error of one rank on all of them.

        Args:
            name: name of the set.
            collectives: the collectives between the ranks.
        """

    def measure(self, embedder: Embedder) -> Mapping[str, float]:
        """Returns the figures by name. All ranks call it together, and must get the same figures.

        Names of its collectives must contain ``embedder.name``.

        Raises:
            JobError: On every rank, if one of them fails.
            StopRequested: On every rank, if one was asked to stop.
        """
        raise NotImplementedError

    def baselines(self, report_progress: Callable[[], None]) -> dict[str, float]:
        """Returns the first figure of methods without a network, by name of the method; called on rank 0 alone.

        Args:
            report_progress: call it at least every ``step_timeout`` seconds.
        """
        return {}

    def problems(self, point: Any, baselines: Mapping[str, float]) -> list[str]:
        """Returns the problems that a point shows after some training, one sentence each.

        Args:
            point: an instance of `point_type`.
            baselines: baselines by name; empty if none were measured.
        """
        figure, value = self.figures[0], self.value(point)
        problems = []
        for name, other in baselines.items():
            better = value > other if self.higher_is_better else value < other  # False for NaN
            if name != UNTRAINED and not better:
                side, known = "above" if self.higher_is_better else "below", name.replace("_", " ")
                problems.append(f"the {figure} {value:.4f} is not {side} that of {known}, {other:.4f}")
        return problems

    def examples(self, count: int) -> Inputs | None:
        """Returns up to ``count`` items to check the ONNX file with; None takes the first training items.

        Called on every rank after `prepare`.
        """
        return None

    def metadata(self, point: Any) -> dict[str, str]:
        """Returns the ONNX file's metadata about a point, by name."""
        return {}

    def log_lines(self, point: Any, best: float) -> list[str]:
        """Returns the log lines of a point; ``best`` is the best first figure so far."""
        measured = "   ".join(f"{name}: {getattr(point, name):.5f}" for name in self.figures)
        return [f"{measured}   Best {self.figures[0]}: {best:.5f}   in {point.seconds:.1f} s"]

    @cached_property
    def point_type(self) -> Any:
        """Named tuple of a verification: number of updates, figures and seconds."""
        return namedtuple("Point", ["num_update", *self.figures, "seconds"])

    def value(self, point: Any) -> float:
        """Returns the first figure of a point."""
        value: float = getattr(point, self.figures[0])
        return value

    def best(self, points: Sequence[Any]) -> Any:
        """Returns the first of the best points; the untrained network counts only if there is no other point."""
        choose = max if self.higher_is_better else min
        return choose([point for point in points if point.num_update] or points, key=self.value)
