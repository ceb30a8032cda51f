"""Recognises from a verification that a training has gone wrong, and says what to change (docs/collapse.md)."""

from __future__ import annotations

from typing import Mapping

from partial_fc.verification import VerificationPoint

# Measured (docs/collapse.md): 1.0 to 2.1 where a training had collapsed, 9 and more in sound ones.
LEAST_DIMENSIONS = 3.0
# Measured: 0.87 and more in sound ones. A dropout of 0.4, in one of the two modes, takes 1 down to 0.77.
LEAST_AGREEMENT = 0.7


def find_problems(point: VerificationPoint, raw_pixels: float | None = None) -> list[str]:
    """What a verification shows to be wrong, a sentence each; none of a sound training.

    Args:
        point: of a network that has been trained beyond its warm-up.
        raw_pixels: accuracy of the pixels themselves on the same pairs, where it is known.
    """
    found = []
    if point.dimensions < LEAST_DIMENSIONS:
        found.append(
            f"the embeddings of different people fill {point.dimensions:.1f} dimensions (at least "
            f"{LEAST_DIMENSIONS:g} in a sound training): they have collapsed into a cone"
        )
    if point.agreement < LEAST_AGREEMENT:
        found.append(
            "the same images have different embeddings in evaluation and in training mode (mean cosine "
            f"{point.agreement:.2f}, at least {LEAST_AGREEMENT:g} in a sound training): running statistics are wrong"
        )
    if raw_pixels is not None and point.accuracy <= raw_pixels:
        found.append(f"the accuracy {point.accuracy:.4f} is no better than that of the pixels alone, {raw_pixels:.4f}")
    return found


def suggest_changes(settings: Mapping) -> str:
    """What to change in these settings of a training that has gone wrong."""
    changes = [f"lower rates ({_lower_rates(settings)})"]
    longer = max(2 * settings["warmup_steps"], settings["max_update"] // 10)
    changes.append(f"a longer warm-up (warmup_steps={longer})")
    if not settings["max_grad_norm"]:
        changes.append("gradient clipping (max_grad_norm=5)")
    if settings["bn_mom"] > 0.9:
        changes.append("running statistics that follow faster (bn_mom=0.9)")
    changes.append(f"larger batches (batch_size={2 * settings['batch_size']})")
    return "begin again with " + ", ".join(changes[:-1]) + " or " + changes[-1]


def _lower_rates(settings: Mapping) -> str:
    own = [name for name in ("backbone_lr", "memory_bank_lr") if settings[name]]
    names = own if len(own) == 2 else ["lr", *own]
    return " ".join(f"{name}={settings[name] / 2:g}" for name in names)
