"""The interface of an evaluation: a held-out set, and what is measured on it while the backbone is in training."""

from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from partial_fc.data.batch import Inputs
from partial_fc.distributed.collectives import Collectives
from partial_fc.training.embedder import Embedder

UNTRAINED = "untrained"  # the name of the baseline of the network itself


class Evaluation:
    """A held-out set of a task; every rank has one. A subclass has ``figures`` and `measure`.

    Attributes:
        figures: names of what is measured. The first figure says which verification is the best.
        higher_is_better: whether it is the highest one.
        shares: of the figures, those from 0 to 1, which reports show in percent.
        paths: files that the set is read from. If one is missing on a host, the set is left out, with a warning.
    """

    figures: Sequence[str]
    higher_is_better = True
    shares: Sequence[str] = ()
    paths: Sequence[str] = ()

    def prepare(self, name: str, collectives: Collectives) -> None:
        """Reads what `measure` needs before the training starts, so that damage is reported then.

        Called on all ranks together. Read in ``collectives.run_on_all_ranks(f"read.{name}", ...)``, which raises the
        error of one rank on all of them.

        Args:
            name: of the set.
            collectives: between the ranks.
        """

    def measure(self, embedder: Embedder) -> Mapping[str, float]:
        """Returns the figures by name, the same on all ranks, which call it together.

        Collectives that it calls have names that contain ``embedder.name``.

        Raises:
            JobError: On every rank, if one of them fails.
            StopRequested: On every rank, if one was asked to stop.
        """
        raise NotImplementedError

    def baselines(self, report_progress: Callable[[], None]) -> dict[str, float]:
        """Returns the first figure by methods that need no network, by their names; called on rank 0 alone.

        Args:
            report_progress: to be called more often than every ``step_timeout`` seconds.
        """
        return {}

    def problems(self, point: Any, baselines: Mapping[str, float]) -> list[str]:
        """Returns what is wrong with a point after some training, one sentence each.

        Args:
            point: of `point_type`.
            baselines: by name; empty if none were measured.
        """
        figure, value = self.figures[0], self.value(point)
        problems = []
        for name, other in baselines.items():
            better = value > other if self.higher_is_better else value < other  # NaN is not
            if name != UNTRAINED and not better:
                side, known = "above" if self.higher_is_better else "below", name.replace("_", " ")
                problems.append(f"the {figure} {value:.4f} is not {side} that of {known}, {other:.4f}")
        return problems

    def examples(self, count: int) -> Inputs | None:
        """Returns up to ``count`` items on which the ONNX file is compared; None takes the first ones of the set.

        Called on every rank after `prepare`.
        """
        return None

    def metadata(self, point: Any) -> dict[str, str]:
        """Returns what the ONNX file says of a point, by name."""
        return {}

    def log_lines(self, point: Any, best: float) -> list[str]:
        """Returns the lines that the log has of a point; ``best`` is the best of the first figure so far."""
        measured = "   ".join(f"{name}: {getattr(point, name):.5f}" for name in self.figures)
        return [f"{measured}   Best {self.figures[0]}: {best:.5f}   in {point.seconds:.1f} s"]

    @cached_property
    def point_type(self) -> Any:
        """Named tuple of the number of updates, the figures and the seconds of a verification."""
        return namedtuple("Point", ["num_update", *self.figures, "seconds"])

    def value(self, point: Any) -> float:
        """Returns the first figure of a point."""
        value: float = getattr(point, self.figures[0])
        return value

    def best(self, points: Sequence[Any]) -> Any:
        """Returns the first of the best points; the untrained network counts only if there is no other."""
        choose = max if self.higher_is_better else min
        return choose([point for point in points if point.num_update] or points, key=self.value)
