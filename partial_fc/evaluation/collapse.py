"""Detects failed trainings from a verification and suggests changes of settings (docs/collapse.md)."""

from collections.abc import Mapping

from partial_fc.utils.options import options_of

from .verification import VerificationPoint

# docs/collapse.md has the measurements behind both bounds.
MIN_DIMENSIONS = 3.0
MIN_AGREEMENT = 0.7
FEW_UPDATES = 300  # the embeddings of a shorter training may not have spread out, at any rate


def find_problems(point: VerificationPoint, different: str = "different people") -> list[str]:
    """Returns the problems shown by a verification after some training; an empty list if there are none.

    Args:
        point: the verification.
        different: name for the items of different pairs.
    """
    # The comparisons are negated so that NaN counts as a problem.
    if not point.dimensions >= MIN_DIMENSIONS:
        return [
            f"the embeddings of {different} span {point.dimensions:.1f} dimensions (expected at least "
            f"{MIN_DIMENSIONS:g}): the embeddings have collapsed into a cone, or have not spread out yet"
        ]
    # Checked second, because a collapse lowers the agreement as well.
    if not point.agreement >= MIN_AGREEMENT:
        return [
            "the same images have different embeddings in evaluation and in training mode (mean cosine "
            f"{point.agreement:.2f}, expected at least {MIN_AGREEMENT:g}): the running statistics are wrong"
        ]
    return []


def suggest_changes(settings: Mapping) -> str:
    """Suggests changes to the settings of a failed training, the most effective change first."""
    updates = settings["max_update"]
    if updates < FEW_UPDATES:
        name = "num_epoch" if settings["num_epoch"] else "max_update"
        longer = max(settings[name], 1) * -(-FEW_UPDATES // max(updates, 1))
        return f"start again with more updates, such as {name}={longer}, or with more classes"
    changes = []
    if settings["schedule"] == "factors":
        pass  # its factors include the warm-up
    elif settings["warmup_epoch"] > 0:
        changes.append(f"warmup_epoch={2 * settings['warmup_epoch']}")
    else:
        longer = min(max(4 * settings["warmup_steps"], 400), updates // 2)
        changes.append(f"warmup_steps={longer}")
    rates = {f"{name}=lr": options_of(settings, name).lr for name in ("optimizer_options", "layer_options")}
    separate = {name: rate for name, rate in rates.items() if rate}
    # ``lr`` applies wherever the options have no rate of their own.
    lowered = separate if len(separate) == len(rates) else {"lr": settings["lr"], **separate}
    changes += [f"{name}={rate / 4:g}" for name, rate in lowered.items()]
    if not settings["max_grad_norm"]:
        changes.append("max_grad_norm=5")
    if options_of(settings, "network_options").bn_mom > 0.9:
        changes.append("network_options=bn_mom=0.9")
    return "start again with " + " ".join(changes)
