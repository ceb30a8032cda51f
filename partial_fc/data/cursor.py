"""The position of a training in its data: a count of images that is valid at any number of ranks.

Shapes: N images of an epoch, G global batch.
"""

Position = tuple[int, int]  # (epoch, images of the epoch that all ranks together have read)


class Cursor:
    """A position in epochs of N images that advances by G images at a time.

    Images after the last complete global batch of an epoch are skipped.

    Args:
        num_images: N.
        global_batch: G.
    """

    def __init__(self, num_images: int, global_batch: int):
        self.num_images, self.global_batch = num_images, global_batch
        self.epoch, self.images = 0, 0

    def current(self) -> Position:
        """Returns the position of the next batch. Raises StopIteration at the end of the epoch."""
        if not self._holds_batch(self.images):
            raise StopIteration
        return self.epoch, self.images

    def advance(self) -> None:
        """Advances by one batch; `current` reports the end of the epoch."""
        self.images += self.global_batch

    def successor(self, position: Position) -> Position:
        """Returns the position of the batch after the one at `position`, which may be in the next epoch."""
        epoch, images = position[0], position[1] + self.global_batch
        return (epoch, images) if self._holds_batch(images) else (epoch + 1, 0)

    def reset(self) -> None:
        """Starts the next epoch; does nothing before the first batch of an epoch."""
        if self.images > 0:
            self.epoch, self.images = self.epoch + 1, 0

    def state(self) -> dict:
        """Returns the position, as integers."""
        return {"epoch": self.epoch, "images": self.images}

    def restore(self, state: dict, order: dict) -> None:
        """Moves to a saved position, or to the next epoch if less than a global batch is left.

        Args:
            state: as returned by `state`, with the entries of `order` added.
            order: what the order of images depends on; must be equal in `state`.

        Raises:
            ValueError: the state belongs to another order, or its position is out of range.
        """
        for name, value in order.items():
            if state.get(name) != value:
                raise ValueError(
                    f"the position in the data was saved with {name}={state.get(name)}, but now it is {value}, so the "
                    "order of the images differs; use the saved value, or start from the beginning"
                )
        epoch, images = (state.get(name) for name in ("epoch", "images"))
        if not isinstance(epoch, int) or not isinstance(images, int) or epoch < 0 or not 0 <= images <= self.num_images:
            raise ValueError(f"no position {images} in epoch {epoch} of {self.num_images} images")
        self.epoch, self.images = (epoch, images) if self._holds_batch(images) else (epoch + 1, 0)

    def _holds_batch(self, images: int) -> bool:
        return images + self.global_batch <= self.num_images
