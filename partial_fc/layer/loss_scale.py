"""Dynamic loss scaling: gradients are kept where float16 can hold them.

The smallest number of float16 is 6e-8 and the largest 65504. Gradients are multiplied by a scale before they enter
float16 and divided by it in the float32 of the optimizer; the scale is the largest that does not overflow, found by
trying (Micikevicius et al. 2018, Mixed Precision Training, arXiv 1710.03740, section 3.2).
"""

from __future__ import annotations

# The numbers that NVIDIA's apex and MXNet's own AMP have.
START, LARGEST = 2.0**16, 2.0**24
GROW_AFTER = 2000  # updates
# From START that is 16 halvings and four updates at 1, where nothing is left to try.
GIVE_UP_AFTER = 20  # updates


class LossScale:
    """The scale of the next update.

    Args:
        batch_size: B; the scale is on the gradient of a mean over the batch, as elsewhere, not on that of a sum.

    Attributes (the three that change are its state, to be saved and set):
        scale: a power of two from 1 to LARGEST.
        good_steps: updates since the scale changed last.
        skipped: updates that have been skipped in a row.
    """

    def __init__(self, batch_size: int):
        self.batch_size = batch_size
        self.scale = START
        self.good_steps = 0
        self.skipped = 0

    @property
    def factor(self) -> float:
        """What the gradient of the loss summed over the batch is multiplied by."""
        return self.scale / self.batch_size

    def passed(self) -> None:
        """Tells of an update whose gradients were finite: after GROW_AFTER of them the scale doubles."""
        self.skipped = 0
        self.good_steps += 1
        if self.good_steps >= GROW_AFTER:
            self.scale, self.good_steps = min(2 * self.scale, LARGEST), 0

    def overflowed(self, num_update: int) -> None:
        """Tells of an update that was skipped because a gradient was infinite or not a number: the scale is halved.

        Args:
            num_update: its number, from 1, for the error.

        Raises:
            FloatingPointError: it was the last of GIVE_UP_AFTER in a row.
        """
        self.skipped += 1
        if self.skipped >= GIVE_UP_AFTER:
            raise FloatingPointError(
                f"{self.skipped} updates in a row overflowed float16 at update {num_update}, the last with loss scale "
                f"{self.scale:.0f}: lower lr, set warmup_steps or max_grad_norm, look for broken images, or set "
                "fp16=False"
            )
        self.scale, self.good_steps = max(self.scale / 2, 1.0), 0
