"""Dynamic loss scaling, which keeps gradients in the range of float16, 6e-8 to 65504.

Gradients are multiplied by a scale before they are converted to float16, and divided by it in float32 by the optimizer.
The scale is kept near the largest value that does not overflow (Micikevicius et al. 2018, Mixed Precision Training,
arXiv 1710.03740, section 3.2).
"""

from collections.abc import Callable
from typing import Any

# The defaults of NVIDIA's apex and MXNet's AMP; intervals are in updates.
START, LARGEST = 2.0**16, 2.0**24
GROW_AFTER = 2000
GIVE_UP_AFTER = 20  # from START these are 16 halvings and four more updates at the minimum, 1


class LossScale:
    """The scale of the next update.

    Args:
        batch_size: B. As in other frameworks, the scale multiplies the gradient of the mean loss over the batch.

    Attributes:
        scale: a power of two from 1 to LARGEST.
        good_steps: updates since the last change of the scale.
        skipped: consecutive skipped updates.
    """

    def __init__(self, batch_size: int):
        self.batch_size = batch_size
        self.scale = START
        self.good_steps = 0
        self.skipped = 0

    def state(self) -> dict[str, float]:
        """Returns the state for a checkpoint, representable in JSON."""
        return {"scale": self.scale, "good_steps": self.good_steps, "skipped": self.skipped}

    def restore(self, state: dict[str, Any]) -> None:
        """Restores a state from state()."""
        self.scale, self.good_steps, self.skipped = state["scale"], state["good_steps"], state["skipped"]

    @property
    def factor(self) -> float:
        """Factor for the gradient of the summed loss of the batch."""
        return self.scale / self.batch_size

    def passed(self) -> None:
        """Records an update with finite gradients. After GROW_AFTER consecutive ones the scale is doubled."""
        self.skipped = 0
        self.good_steps += 1
        if self.good_steps >= GROW_AFTER:
            self.scale, self.good_steps = min(2 * self.scale, LARGEST), 0

    def overflowed(self, num_update: int, log: Callable[..., object] | None = None) -> None:
        """Records an update that was skipped because a gradient was not finite, and halves the scale.

        Args:
            num_update: the update.
            log: called like logging.info; None on ranks that do not log.

        Raises:
            FloatingPointError: GIVE_UP_AFTER consecutive updates were skipped.
        """
        self.skipped += 1
        if self.skipped >= GIVE_UP_AFTER:
            raise FloatingPointError(
                f"{self.skipped} updates in a row overflowed float16 at update {num_update}, the last with loss scale "
                f"{self.scale:.0f}: lower lr, set warmup_steps or max_grad_norm, look for broken images, or set "
                "fp16=False"
            )
        before, self.scale, self.good_steps = self.scale, max(self.scale / 2, 1.0), 0
        if log is not None:
            message = "float16 overflow at update %d: step skipped, loss scale %.0f -> %.0f"
            log(message, num_update, before, self.scale)
