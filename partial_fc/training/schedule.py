"""Length and learning rates of a training; schedules/ has the factors of the initial rates.

Shapes: N images of an epoch, B local batch, R ranks, G = B*R global batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from partial_fc.data.cursor import Position
from partial_fc.utils.options import options_of, other_options

from .schedules import Length, Moment, build_schedule, is_ramp, value_in_epoch, value_on_ramp
from .schedules.functions import linear_warm_up, steps


@dataclass(frozen=True)
class Epochs:
    """Epochs of N // G updates, as partial_fc.data.cursor counts them."""

    num_images: int  # N
    global_batch: int  # G
    num_update: int = 0  # updates done before this process started, from a checkpoint
    position: Position = (0, 0)  # position in the data after them, which num_update does not imply if G has changed

    def epoch_of(self, num_update: int) -> int:
        """Returns the epoch, from 0, that an update's images belong to; updates count from 1."""
        later = num_update - self.num_update - self._rest
        return self.position[0] if later <= 0 else self.position[0] + 1 + (later - 1) // self.updates

    def last_update(self, num_epoch: int) -> int:
        """Returns the number of updates after ``num_epoch`` epochs, but at least the updates already done."""
        more = num_epoch - self.position[0] - 1
        return self.num_update + (self._rest + more * self.updates if more >= 0 else 0)

    def last_ends(self, count: int, max_update: int) -> tuple[int, list[int]]:
        """Returns the first of the last ``count`` epochs of a training, and the updates with which they end.

        The last one is ``max_update``, even within its epoch. Ends that lie before ``num_update`` are not known.
        """
        last = self.epoch_of(max_update)
        first = max(last - count + 1, 0)
        return first, [*(self.last_update(epoch + 1) for epoch in range(first, last)), max_update]

    def place_of(self, num_update: int) -> int:
        """Returns Moment.place of an update."""
        return (self.position[0] + 1) * self.updates - self._rest + num_update - self.num_update

    @property
    def updates(self) -> int:
        """Updates of a whole epoch."""
        return self.num_images // self.global_batch

    @property
    def _rest(self) -> int:
        """Updates left in the epoch of ``position``."""
        return (self.num_images - self.position[1]) // self.global_batch


RateFactor = Callable[[int], float]  # number of an update, from 1 -> factor of the initial learning rates


def items_of_update(settings) -> int:
    """Returns the number of items per rank and update; settings saved before 2.1 have no micro-batches."""
    items: int = settings["batch_size"] * settings.get("gradient_acc", 1)
    return items


def learning_rates(settings, ranks: int) -> tuple[float, float]:
    """Returns the initial learning rates of backbone and class centers; both follow ``lr`` unless set or frozen.

    ``lr`` is scaled from a batch of ``lr_reference_batch`` images. Linear scaling changes the weights by about the same
    amount per epoch at any batch size (Goyal et al. 2017, arXiv 1706.02677, section 2.1).
    """
    scaled, reference = settings.lr, settings.lr_reference_batch
    if reference:
        scaled = scaled / reference * items_of_update(settings) * ranks
    backbone, centers = (options_of(settings, name).lr for name in ("optimizer_options", "layer_options"))
    frozen = settings.get("teacher_centers") == "frozen"
    return backbone or scaled, 0.0 if frozen else centers or scaled


def describe_rates(settings, ranks: int) -> str:
    """Returns a log line with the initial learning rates, how they follow from the settings, and their schedule."""
    reference = settings.lr_reference_batch
    rule = f"lr {settings.lr:g} "
    rule += f"x {items_of_update(settings) * ranks} images / {reference}" if reference else "for any batch"
    names = ("num_epoch", "warmup_steps", "warmup_epoch")
    lengths = [f"{name} {settings[name]}" for name in names if settings[name] > 0]
    backbone, centers = learning_rates(settings, ranks)
    schedule = ", ".join([f"schedule {settings.schedule}", *lengths])
    return f"rates: backbone {backbone:g}, class centers {centers:g} ({rule}, unless set); {schedule}"


def resolve_schedule(settings: Any, epochs: Epochs) -> tuple[Any, RateFactor]:
    """Returns a copy of the settings in which ``max_update`` is the length of the training, and the rate factors.

    The length follows from ``num_epoch`` and the epochs of the data if ``num_epoch`` is set. Raises ValueError as
    `build_schedule`.
    """
    by_epochs = settings.num_epoch > 0
    max_update = epochs.last_update(settings.num_epoch) if by_epochs else settings.max_update
    total = settings.num_epoch * epochs.updates if by_epochs else max_update
    schedule = build_schedule(settings, total, epochs.updates)
    warm_up = max(settings.warmup_epoch, 0) * epochs.updates

    def factor(num_update: int) -> float:
        place = epochs.place_of(num_update)
        # A length in updates counts actual updates, a warm-up in epochs counts places. The two differ after a resume
        # with another batch size; without the maximum, a completed warm-up could then begin again.
        if not by_epochs and place >= warm_up:
            place = max(num_update, warm_up)
        return schedule(Moment(num_update, epochs.epoch_of(num_update), place))

    return type(settings)({**settings, "max_update": max_update}), factor


def lists_by_epoch(settings: Any) -> dict[str, list[Any]]:
    """Returns the options of the margin that change during the training, see schedules/ramps.py."""
    options = other_options(settings, "margin_options")
    return {name: value for name, value in options.items() if isinstance(value, list)}


def margin_options_by_update(settings: Any, epochs: Epochs) -> Callable[[int], dict[str, float]]:
    """Returns a function from the number of an update, from 1, to the margin's options that change, with their values.

    They depend only on the update's place in the data, so that a resumed training has the same ones.
    """
    lists, growth = lists_by_epoch(settings), options_of(settings, "margin_options").ramp

    def value(values: list[Any], num_update: int) -> float:
        if is_ramp(values):
            return float(value_on_ramp(values, growth, epochs.place_of(num_update) - 1, epochs.updates))
        return float(value_in_epoch(values, epochs.epoch_of(num_update)))

    return lambda num_update: {name: value(values, num_update) for name, values in lists.items()}


def step_factor(lr_steps: Sequence[int], warmup_steps: int) -> RateFactor:
    """Returns factors that are divided by 10 after each update in ``lr_steps``, after a linear warm-up."""
    schedule = linear_warm_up(steps(Length(0, 0, 0), lr_steps), warmup_steps, by_epoch=False)
    return lambda num_update: schedule(Moment(num_update, 0, num_update))
