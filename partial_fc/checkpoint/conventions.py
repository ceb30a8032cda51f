"""What the numbers of a checkpoint mean where the two trainers differ. A training keeps what it starts from."""

from __future__ import annotations

from typing import NamedTuple

from .manifest import Manifest


class Conventions(NamedTuple):
    """The meaning of weights and momentum.

    A training that resumes from a checkpoint of the other trainer takes over its conventions and saves in them, so that
    no number is converted and rounded.

    Attributes:
        eps: epsilon of the batch norms, except for those where it is a constant of the architecture.
        pixel_scale: the network computes on pixels as (x - 127.5) / pixel_scale.
        sums_gradients: whether momentum sums gradients or steps, see SGDParams.
    """

    eps: float
    pixel_scale: float
    sums_gradients: bool

    @classmethod
    def of(cls, path: str, manifest: Manifest) -> Conventions:
        """Returns those of a checkpoint.

        Args:
            path: of the checkpoint, for the message.
            manifest: of the checkpoint.

        Raises:
            ValueError: The manifest has others than known ones.
        """
        saved = manifest.state.get("conventions")
        if saved is None:  # a checkpoint of an earlier version
            return TORCH if "version of torch" in manifest.origin else MXNET
        try:
            return cls(float(saved["eps"]), float(saved["pixel_scale"]), bool(saved["sums_gradients"]))
        except (TypeError, KeyError, ValueError):
            expected = ", ".join(cls._fields)
            raise ValueError(f"{path}: its conventions are {str(saved)[:100]}, expected {expected}") from None


# Those of new trainings, which are also those of the published models of each framework.
MXNET = Conventions(eps=2e-5, pixel_scale=128.0, sums_gradients=False)
TORCH = Conventions(eps=1e-5, pixel_scale=127.5, sums_gradients=True)
