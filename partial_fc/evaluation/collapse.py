"""Recognises from a verification that a training has gone wrong, and says what to change (docs/collapse.md)."""

from __future__ import annotations

from collections.abc import Mapping

from .verification import VerificationPoint

# docs/collapse.md has the figures on which the two bounds rest.
LEAST_DIMENSIONS = 3.0
LEAST_AGREEMENT = 0.7


def find_problems(point: VerificationPoint, raw_pixels: float | None = None) -> list[str]:
    """What a verification shows to be wrong, a sentence each; none of a sound training.

    Args:
        point: of a network that has been trained.
        raw_pixels: accuracy of the pixels themselves on the same pairs, where it is known.
    """
    found = []
    if not point.dimensions >= LEAST_DIMENSIONS:
        found.append(
            f"the embeddings of different people fill {point.dimensions:.1f} dimensions (sound trainings: "
            f"{LEAST_DIMENSIONS:g} and more): they have collapsed into a cone, or have not spread out yet"
        )
    elif not point.agreement >= LEAST_AGREEMENT:  # in a cone, a consequence of it
        found.append(
            "the same images have different embeddings in evaluation and in training mode (mean cosine "
            f"{point.agreement:.2f}, sound trainings: {LEAST_AGREEMENT:g} and more): the running statistics are wrong"
        )
    if raw_pixels is not None and point.accuracy <= raw_pixels:
        found.append(f"the accuracy {point.accuracy:.4f} is no better than that of the pixels alone, {raw_pixels:.4f}")
    return found


def suggest_changes(settings: Mapping) -> str:
    """What to change in these settings where a training has gone wrong, the change that helped most first."""
    longer = min(max(4 * settings["warmup_steps"], 400), max(settings["max_update"] // 2, 1))
    changes = [f"warmup_steps={longer}", *_lower_rates(settings)]
    if not settings["max_grad_norm"]:
        changes.append("max_grad_norm=5")
    if settings["bn_mom"] > 0.9:
        changes.append("bn_mom=0.9")
    return "if the next verification shows the same, start again with " + " ".join(changes)


def _lower_rates(settings: Mapping) -> list[str]:
    own = [name for name in ("backbone_lr", "memory_bank_lr") if settings[name]]
    names = own if len(own) == 2 else ["lr", *own]
    return [f"{name}={settings[name] / 4:g}" for name in names]
