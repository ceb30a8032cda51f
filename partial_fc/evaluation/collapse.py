"""Detects failed trainings from a verification and suggests changes of settings (docs/collapse.md)."""

from collections.abc import Mapping

from partial_fc.utils.options import options_of

from .verification import VerificationPoint

# docs/collapse.md has the measurements behind both bounds.
MIN_DIMENSIONS = 3.0
MIN_AGREEMENT = 0.7


def find_problems(point: VerificationPoint, different: str = "different people") -> list[str]:
    """Returns the problems that a verification after some training shows; an empty list if it succeeds.

    ``different`` is what the pairs are of that are not the same.
    """
    problems = []
    # The comparisons are negated so that NaN counts as a problem.
    if not point.dimensions >= MIN_DIMENSIONS:
        problems.append(
            f"the embeddings of {different} span {point.dimensions:.1f} dimensions (expected at least "
            f"{MIN_DIMENSIONS:g}): they have collapsed into a cone, or have not spread out yet"
        )
    elif not point.agreement >= MIN_AGREEMENT:  # a collapse causes this, too
        problems.append(
            "the same images have different embeddings in evaluation and in training mode (mean cosine "
            f"{point.agreement:.2f}, expected at least {MIN_AGREEMENT:g}): the running statistics are wrong"
        )
    return problems


def suggest_changes(settings: Mapping) -> str:
    """Suggests changes of these settings for a failed training, the most effective change first."""
    changes = [*_longer_warm_up(settings), *_lower_rates(settings)]
    if not settings["max_grad_norm"]:
        changes.append("max_grad_norm=5")
    if options_of(settings, "network_options").bn_mom > 0.9:
        changes.append("network_options=bn_mom=0.9")
    return "if the next verification shows the same, start again with " + " ".join(changes)


def _longer_warm_up(settings: Mapping) -> list[str]:
    if settings["schedule"] == "factors":  # warm-up and decay are both the user's: another warm-up is refused
        return []
    if settings["warmup_epoch"] > 0:
        return [f"warmup_epoch={2 * settings['warmup_epoch']}"]
    return [f"warmup_steps={min(max(4 * settings['warmup_steps'], 400), max(settings['max_update'] // 2, 1))}"]


def _lower_rates(settings: Mapping) -> list[str]:
    rates = {f"{name}=lr": options_of(settings, name).lr for name in ("optimizer_options", "layer_options")}
    separate = {name: rate for name, rate in rates.items() if rate}
    changed = separate if len(separate) == len(rates) else {"lr": settings["lr"], **separate}
    return [f"{name}={rate / 4:g}" for name, rate in changed.items()]
