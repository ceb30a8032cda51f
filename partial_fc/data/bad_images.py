"""Handles unusable images: an error, or, if the user allows it, another image in their place."""

from __future__ import annotations

import logging
import threading


class BadImages:
    """Counts the bad images of a rank; up to `allowed` different ones are skipped. Thread-safe.

    Images are counted when they are read, which is ahead of the training and in several threads: if more than `allowed`
    are close together, the error may name any of them.

    Args:
        allowed: the setting skip_bad_images.
    """

    def __init__(self, allowed: int):
        if allowed < 0:
            raise ValueError(f"skip_bad_images must be at least 0, got {allowed}")
        self.allowed = allowed
        self._positions: set[int] = set()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._positions)

    def skip(self, position: int, error: ValueError) -> None:
        """Counts and logs a bad image, once.

        Raises:
            ValueError: `error`, as no more bad images are allowed.
        """
        with self._lock:
            if position in self._positions:
                return
            if len(self) >= self.allowed:
                raise ValueError(f"{error}{self._advice()}") from None
            self._positions.add(position)
            logging.warning("skipped, bad image %d of at most %d: %s", len(self), self.allowed, error)

    def _advice(self) -> str:
        if self.allowed:
            return f" (skip_bad_images={self.allowed}, {self.allowed} were skipped before)"
        return "; or skip it with skip_bad_images=1 or more (partial-fc sets check lists them all)"
