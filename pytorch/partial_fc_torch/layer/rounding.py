"""Stochastic rounding of rows to bfloat16.

Round-to-nearest loses every update of a number that is smaller than 2^-9 of it, such as most updates of a training with
a small learning rate. Rounded up or down at random, with the float32 number as the mean, they add up.

Shapes: N rows of the arrays of a step, T rows of a tile, E columns.
"""

import numpy as np
import torch

from .rows import to_device

STREAM = 0xB16  # separates these numbers from others with the same seed
LARGEST_NAN = 0x7FFF0000  # adding 16 bits to a larger NaN would make it a number


class Rounding:
    """Rounds the rows of one update.

    The random bits of a number depend on the seed, the update, the array, the row among the rows of all ranks, and the
    column. A resumed training and another number of ranks therefore round alike.

    Args:
        seed: seed of the layer.
        num_update: number of updates done.
        first_row: first of this rank's rows, among the rows of all ranks.
        local_rows: (N,) int64 on the device, this rank's rows in the arrays of the step; None if they contain all.
    """

    def __init__(self, seed: int, num_update: int, first_row: int, local_rows: torch.Tensor | None = None):
        self._key, self._first_row, self._local_rows = (seed, num_update, STREAM), first_row, local_rows
        self._columns: dict[int, torch.Tensor] = {}
        self._bits = self._words = torch.empty(0)

    def __call__(self, values: torch.Tensor, rows: torch.Tensor, array: int) -> torch.Tensor:
        """Returns (T, E) bfloat16. Numbers that bfloat16 has do not change.

        Args:
            values: (T, E) float32.
            rows: (T,) int64, their rows in the arrays of the step.
            array: number of the array in Centers.write: 0 for the centers, then their states.
        """
        width = values.shape[1]
        if array not in self._columns:
            drawn = np.random.default_rng([*self._key, array]).integers(-(2**31), 2**31, -(-width // 2), np.int32)
            self._columns[array] = to_device(drawn, values.device)
        columns = self._columns[array]
        local = rows if self._local_rows is None else self._local_rows[rows]
        keys = _mixed((local + self._first_row).to(torch.int32)[:, None])
        if self._bits.shape != values.shape:  # kept, because fresh memory costs a CPU more than the operations
            self._bits = torch.empty_like(values, dtype=torch.int32)
            self._words = self._bits.new_empty(2, len(values), len(columns))
        words, scratch = self._words
        noise = _mixed(torch.bitwise_xor(keys, columns, out=words), scratch).view(torch.int16)[:, :width]
        # The 16 bits that bfloat16 leaves out, plus a number from 0 to 2^16 - 1, carry into the others with a
        # probability of their fraction of 2^16.
        bits = torch.clamp(values.view(torch.int32), max=LARGEST_NAN, out=self._bits)
        return bits.add_(noise).add_(2**15).bitwise_and_(-(2**16)).view(torch.float32).to(torch.bfloat16)


def _mixed(words: torch.Tensor, scratch: torch.Tensor | None = None) -> torch.Tensor:
    """Returns a bijective hash of int32 words, lowbias32 of Wellons without its first shift; overwrites them."""
    scratch = torch.empty_like(words) if scratch is None else scratch
    for shift, factor in ((15, 0x7FEB352D), (16, 0x846CA68B - 2**32)):
        words.mul_(factor)
        torch.bitwise_right_shift(words, shift, out=scratch).bitwise_and_(2 ** (32 - shift) - 1)  # it repeats the sign
        words.bitwise_xor_(scratch)
    return words
