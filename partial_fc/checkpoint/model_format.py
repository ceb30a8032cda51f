"""What the numbers of a checkpoint mean, where the two trainers differ. A training keeps the format it starts from."""

from __future__ import annotations

from typing import NamedTuple

from .manifest import Manifest


class ModelFormat(NamedTuple):
    """The meaning of weights and momentum.

    A training that resumes from the other trainer's checkpoint keeps its format, so that no number is converted and
    rounded.
    """

    eps: float  # epsilon of the batch norms, unless the architecture fixes it
    pixel_scale: float  # the network's inputs are (x - 127.5) / pixel_scale
    momentum_convention: str  # "steps" or "gradients", see SGDParams

    @classmethod
    def of(cls, path: str, manifest: Manifest) -> ModelFormat:
        """Returns the format of the checkpoint at ``path``, or raises ValueError if its manifest has an unknown one."""
        saved = manifest.state.get("conventions")
        if saved is None:  # a checkpoint of an earlier version
            return TORCH if "version of torch" in manifest.origin else MXNET
        try:
            convention = "gradients" if saved["sums_gradients"] else "steps"
            return cls(float(saved["eps"]), float(saved["pixel_scale"]), convention)
        except (TypeError, KeyError, ValueError):
            expected = ", ".join(MXNET.to_json())
            raise ValueError(f"{path}: its conventions are {str(saved)[:100]}, expected {expected}") from None

    def to_json(self) -> dict[str, float | bool]:
        """Returns the format with the keys that checkpoints of all versions have."""
        sums_gradients = self.momentum_convention == "gradients"
        return {"eps": self.eps, "pixel_scale": self.pixel_scale, "sums_gradients": sums_gradients}


# The formats of new trainings, and of the published models of each framework.
MXNET = ModelFormat(eps=2e-5, pixel_scale=128.0, momentum_convention="steps")
TORCH = ModelFormat(eps=1e-5, pixel_scale=127.5, momentum_convention="gradients")
