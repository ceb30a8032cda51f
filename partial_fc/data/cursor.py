"""Where a run stands in its data: a number of images of the global order, which means the same at any number of ranks.

Shapes: N images of an epoch, G global batch.
"""

from __future__ import annotations

Place = tuple[int, int]  # (epoch, images of its order that all ranks together have been given)


class Cursor:
    """A place in epochs of `num_images` N, that moves on by `global_batch` G images at a time.

    Images after the last whole global batch of an epoch are left out of it.
    """

    def __init__(self, num_images: int, global_batch: int):
        self.num_images, self.global_batch = num_images, global_batch
        self.epoch, self.images = 0, 0

    def current(self) -> Place:
        """The place of the next batch. Raises StopIteration at the end of the epoch."""
        if not self._holds_batch(self.images):
            raise StopIteration
        return self.epoch, self.images

    def advance(self) -> None:
        """Move on by one batch; `current` tells of the end of the epoch."""
        self.images += self.global_batch

    def successor(self, place: Place) -> Place:
        """The place of the batch after the one at `place`, in the next epoch if that was the last."""
        epoch, images = place[0], place[1] + self.global_batch
        return (epoch, images) if self._holds_batch(images) else (epoch + 1, 0)

    def reset(self) -> None:
        """Start the next epoch; before the first batch of an epoch this changes nothing."""
        if self.images > 0:
            self.epoch, self.images = self.epoch + 1, 0

    def state(self) -> dict:
        """The place, as integers."""
        return {"epoch": self.epoch, "images": self.images}

    def restore(self, state: dict, order: dict) -> None:
        """Move to the place of `state`, of which all that is in `order` must be the same.

        Where less than a global batch of that epoch is left, that is the beginning of the next. Raises ValueError for a
        state of another order, and for a place that is none.
        """
        for name, value in order.items():
            if state.get(name) != value:
                raise ValueError(
                    f"the place in the data was saved with {name}={state.get(name)}, but now it is {value}: the images "
                    "come in another order, go on with the same or start from the beginning"
                )
        epoch, images = (state.get(name) for name in ("epoch", "images"))
        if not isinstance(epoch, int) or not isinstance(images, int) or epoch < 0 or not 0 <= images <= self.num_images:
            raise ValueError(f"there is no place {images} in epoch {epoch} of {self.num_images} images")
        self.epoch, self.images = (epoch, images) if self._holds_batch(images) else (epoch + 1, 0)

    def _holds_batch(self, images: int) -> bool:
        return images + self.global_batch <= self.num_images
