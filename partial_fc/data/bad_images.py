"""What happens to images that cannot be used: an error, or, where the user allows it, another image in their place."""

from __future__ import annotations

import logging
import threading


class BadImages:
    """Counts the bad images of a rank; up to `allowed` different ones are passed over. For several threads.

    Images count when they are met, which is ahead of the training: where more than `allowed` lie close together, the
    one that is too many may be any of them.
    """

    def __init__(self, allowed: int):
        if allowed < 0:
            raise ValueError(f"skip_bad_images is a number of images, got {allowed}")
        self.allowed = allowed
        self._positions: set[int] = set()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._positions)

    def pass_over(self, position: int, error: ValueError) -> None:
        """Count the image and log the first meeting with it. Raises ValueError where no more are allowed."""
        with self._lock:
            if position in self._positions:
                return
            if len(self) >= self.allowed:
                raise ValueError(f"{error}{self._advice()}") from None
            self._positions.add(position)
            logging.warning("skipped, bad image %d of at most %d: %s", len(self), self.allowed, error)

    def _advice(self) -> str:
        if self.allowed:
            return f" (skip_bad_images={self.allowed}, and {self.allowed} were skipped before)"
        return "; or leave it out with skip_bad_images=1 or more (python -m partial_fc.data.tools check finds them all)"
