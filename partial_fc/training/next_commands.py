"""Commands that a finished training suggests; each can be copied and run in any folder."""

import os
import shutil
import sys
from shlex import quote

import partial_fc
from partial_fc.utils.imports import TRUST, code_in

from .results import TrainingResult

PARTIAL_FC = "partial-fc"  # the installed command, whose ``train`` trains with PyTorch


def next_commands(result: TrainingResult, script: str) -> list[str]:
    """Returns commands that continue from a training.

    Args:
        result: result of the training.
        script: path of the script that trains on this host, or PARTIAL_FC; empty to suggest no training.
    """
    is_faces = result.settings["task"] == "faces"  # its sets of pairs are files that `verify` reads
    pairs = dict.fromkeys(path for each in result.sets.values() if is_faces for path in each.evaluation.paths)
    folder, tool = quote(result.folder), _installed(PARTIAL_FC)
    commands = _trainings(result, script) if script else []
    if pairs:
        commands.append(f"{tool} verify {folder} {' '.join(map(quote, pairs))}")
    else:
        commands.append(f"{tool} report card {folder} --out {quote(os.path.join(result.folder, 'card'))}")
    if "tensorboard" in result.settings["trackers"]:
        logs = quote(os.path.dirname(result.folder))
        commands.append(f"{_installed('tensorboard')} --logdir {logs}  # if missing: pip install tensorboard")
    return commands


def _trainings(result: TrainingResult, script: str) -> list[str]:
    """Returns commands for the same training with another loss, and with sampled classes, in new folders."""
    settings, losses = result.settings, ["arcface", "cosface"]
    if settings["resume"] not in ("", "auto"):  # a new run would resume from the same checkpoint instead of starting
        return []
    if script == PARTIAL_FC:
        start = f"{_installed(script)} train --nproc {result.ranks}"
    else:
        start = f"NP={result.ranks} bash {quote(script)}"
    again = f"{start} --config {quote(os.path.join(result.folder, 'settings.json'))}"
    if any(any(code_in(named)) for named in (settings, *(head.own for head in result.heads))):
        again += f" {TRUST}"
    changes, of_first_head = [], result.heads[0].own if result.heads else {}  # which changes would not reach
    if settings["loss"] in losses and "loss" not in of_first_head:
        losses.remove(settings["loss"])
        changes.append(f"loss={losses[0]}")
    if settings["sample_ratio"] == 1 and "sample_ratio" not in of_first_head:
        changes.append("sample_ratio=0.1")
    return [f"{again} {change} {quote(f'output={result.folder}-{change}')}" for change in changes]


def _installed(name: str) -> str:
    """Returns a program of this environment, which may not be in PATH; the name if it is elsewhere."""
    path = os.path.join(os.path.dirname(sys.executable), name)
    if os.path.exists(path):
        return quote(path)
    if name == PARTIAL_FC and shutil.which(name) is None:  # from a clone that is not installed
        return f"PYTHONPATH={quote(os.path.dirname(partial_fc.__path__[0]))} {quote(sys.executable)} -m partial_fc"
    return name
