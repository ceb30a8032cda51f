"""Length and learning rate of a training, given in updates or in epochs.

- In updates, as the original trainer on MXNet: the rate is divided by 10 after each update of ``lr_steps``, and grows
  linearly from 0 during ``warmup_steps`` updates (mxnet.lr_scheduler.MultiFactorScheduler).
- In epochs, as arcface_torch (insightface, commit fb5b42fe): the rate of an epoch is multiplied by a function of its
  number e = 0, 1, ... The function of its data sets is ((e + 1) / (warmup_epoch + 1))^2 while e < warmup_epoch, else
  0.1^n, where n is the number of m in ``lr_epochs`` with m - 1 <= e: m counts epochs from 1.

Shapes: N images of an epoch, B local batch, R ranks, G = B*R global batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from partial_fc.data.cursor import Position
from partial_fc.utils.config import SettingsError


@dataclass(frozen=True)
class Epochs:
    """Epochs of N // G updates, as partial_fc.data.cursor has them.

    Attributes:
        num_images: N.
        global_batch: G.
        num_update: Updates done before this process started, from a checkpoint.
        position: Position in the data after them. At another G than before, the epoch does not follow from num_update.
    """

    num_images: int
    global_batch: int
    num_update: int = 0
    position: Position = (0, 0)

    def epoch_of(self, num_update: int) -> int:
        """Returns the epoch, from 0, whose images the update reads; updates count from 1."""
        later = num_update - self.num_update - self._rest
        return self.position[0] if later <= 0 else self.position[0] + 1 + (later - 1) // self._updates

    def last_update(self, num_epoch: int) -> int:
        """Returns the number of updates after ``num_epoch`` epochs; those done already if they are past that."""
        more = num_epoch - self.position[0] - 1
        return self.num_update + (self._rest + more * self._updates if more >= 0 else 0)

    @property
    def _updates(self) -> int:
        """Updates of a whole epoch."""
        return self.num_images // self.global_batch

    @property
    def _rest(self) -> int:
        """Updates of the epoch of ``position`` that are left."""
        return (self.num_images - self.position[1]) // self.global_batch


REFERENCE_BATCH = 512  # global batch size for which learning rates are given: 8 ranks of 64 images
RateFactor = Callable[[int], float]  # number of an update, from 1 -> factor of the initial learning rates


def scaled_rate(lr: float, global_batch: int) -> float:
    """Scales a learning rate for 512 images to a global batch of ``global_batch`` images.

    Linear scaling changes the weights by about the same amount per epoch at any batch size (Goyal et al. 2017,
    arXiv 1706.02677, section 2.1).
    """
    return lr / REFERENCE_BATCH * global_batch


def learning_rates(settings, ranks: int) -> tuple[float, float]:
    """Returns the initial learning rates of backbone and class centers; both scale with the global batch unless set."""
    scaled = scaled_rate(settings.lr, settings.batch_size * ranks)
    return settings.backbone_lr or scaled, settings.memory_bank_lr or scaled


def resolve_schedule(settings: Any, epochs: Epochs) -> tuple[Any, RateFactor]:
    """Derives length and rates of a training from the settings, once the data are known.

    Args:
        settings: Of default.py, completed by its generate_config.
        epochs: Of the training data, with the position of the checkpoint from which the training resumes.

    Returns:
        A copy of the settings in which ``max_update`` is the length also where ``num_epoch`` decides; the rates.
    """
    max_update = epochs.last_update(settings.num_epoch) if settings.num_epoch else settings.max_update
    steps = {name: settings[name] for name in ("lr_steps", "warmup_steps", "lr_epochs", "warmup_epoch")}
    given = settings.lr_func

    def factor(num_update: int) -> float:
        epoch = epochs.epoch_of(num_update)
        return value_in_epoch(given, epoch) if given else rate_factor(num_update, epoch, **steps)

    return type(settings)({**settings, "max_update": max_update}), factor


def value_in_epoch(setting: float | Sequence[float], epoch: int) -> float:
    """Returns the value of a setting in an epoch, from 0: of several the last is that of all later epochs."""
    return setting[min(epoch, len(setting) - 1)] if isinstance(setting, Sequence) else setting


def rate_factor(
    num_update: int,
    epoch: int = 0,
    lr_steps: Sequence[int] = (),
    warmup_steps: int = 0,
    lr_epochs: Sequence[int] = (),
    warmup_epoch: int = -1,
) -> float:
    """Returns the factor of the initial learning rate in an update.

    Args:
        num_update: Number of the update, from 1.
        epoch: Number of the epoch whose images it reads, from 0.
        lr_steps, warmup_steps, lr_epochs, warmup_epoch: Settings of default.py; see above.
    """
    if epoch < warmup_epoch:
        return ((epoch + 1) / (warmup_epoch + 1)) ** 2
    if num_update < warmup_steps:
        return num_update / warmup_steps
    return 0.1 ** (sum(step < num_update for step in lr_steps) + sum(m - 1 <= epoch for m in lr_epochs))


def tabulate_rates(lr_func: Callable[[int], float], num_epoch: int) -> list[float]:
    """Returns a user's factors for all epochs, which settings.json can hold and ranks can compare.

    Args:
        lr_func: Number of an epoch, from 0 -> factor of the initial learning rate.
        num_epoch: Number of epochs.

    Raises:
        SettingsError: The function fails or returns no number, or the number of epochs is not known.
    """
    if not num_epoch:
        raise SettingsError("lr_func is a function of the epoch, but num_epoch is 0: set num_epoch, or lr_func=[]")
    try:
        return [float(lr_func(epoch)) for epoch in range(num_epoch)]
    except Exception as error:  # of the user's code
        raise SettingsError(f"lr_func failed: {type(error).__name__}: {error}") from error
