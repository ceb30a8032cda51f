"""Compares the facts of a host with those of the machine that starts the training, and makes rows of the result."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from partial_fc.utils.text import plural

from .job_requirements import Training
from .row import Row
from .software import Software

SETTINGS = ("config.py", "default.py")
CPU_WHEELS = ("", "mxnet", "torch+cpu")
MIN_MEMORY = 2**30  # bytes; with less, no training starts
MIN_DISK = 0.05  # free share of a disk below which it counts as full
MAX_CLOCK_OFFSET = 5  # seconds; beyond it, times in logs and checkpoints are misleading

Facts = Mapping[str, Any]


class Reference(NamedTuple):
    """What a host is compared with.

    Attributes:
        clone: Folder of the code, the same on every host.
        local: Facts of the machine that runs the check.
        data: Files of the data set on the first host that has all required ones; None if no host has.
        data_host: Name of that host.
        training: The training that will run; None if it is not known.
        software: The trainer.
    """

    clone: str
    local: Facts
    data: Mapping[str, Any] | None
    data_host: str
    training: Training | None
    software: Software


def rows(name: str, slots: int, facts: Facts, reference: Reference) -> list[Row]:
    """All rows of a host except those of ssh, clock and network.

    Args:
        name: Name of the host.
        slots: Number of its ranks.
        facts: The answer of facts.py on that host.
        reference: What it is compared with.
    """
    clone, local = reference.clone, reference.local
    if facts is not local and not facts.get("code") and "code" not in facts["failed"]:
        fix = f"rsync -a --exclude .venv --exclude models {clone}/ {name}:{clone}/   then there: {_install(reference)}"
        return [Row("bad", "clone", f"there is none at {clone}", fix), *_resources(slots, facts)]
    return [
        *_checkout(facts, name, reference),
        _venv(facts, reference),
        *_data(facts, name, reference),
        *_resources(slots, facts),
        *_shared(facts, local, reference.training),
    ]


def has_data(facts: Facts, training: Training | None) -> bool:
    """Whether a host has all required files, so that others can be compared with it."""
    samples = facts.get("data", {})
    return training is not None and all("size" in samples.get(path, {}) for path in training.needed)


def port_row(port: int, facts: Facts) -> Row:
    """The row of the port on which the first host listens in training."""
    if "port" in facts["failed"]:
        return Row(
            "bad",
            "port",
            f"{port}: {facts['failed']['port']}",
            f"choose another --master_port, or see: ss -tlnp 'sport = {port}'",
        )
    return Row("ok", "port", f"{port} is free")


def clock_row(offset: float, error: float) -> Row:
    """The row of the clock.

    Args:
        offset: Seconds by which the host's clock is ahead.
        error: Seconds by which that may be wrong.
    """
    found = f"{abs(offset):.1f} s {'ahead' if offset > 0 else 'behind'}"
    if abs(offset) - error > MAX_CLOCK_OFFSET:
        return Row("warn", "clock", found, "set it there: timedatectl set-ntp true")
    return Row("ok", "clock", "as here" if abs(offset) <= error + 0.1 else found)


def format_size(number: float) -> str:
    """A number of bytes with its unit."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if number < 1024 or unit == "GiB":
            return f"{number:.0f} {unit}" if unit == "bytes" or number >= 100 else f"{number:.1f} {unit}"
        number /= 1024
    raise AssertionError


def _install(reference: Reference) -> str:
    return f"bash {reference.clone}/setup-utils/{reference.software.install}"


def _failed(facts: Facts, what: str, fact: str, mark: str = "bad") -> Row:
    found = f"could not be checked: {facts['failed'].get(fact, 'no answer')}"
    return Row(mark, what, found, "is a file server down, or a permission missing there?")


def _checkout(facts: Facts, name: str, reference: Reference) -> list[Row]:
    found, clone, local = [], reference.clone, reference.local
    for what, parts in (("code", reference.software.code), ("settings", SETTINGS)):
        own, other = local.get(what), facts.get(what)
        if other is None or own is None:
            found.append(_failed(facts, what, what))
            continue
        different = sorted(path for path in {*own, *other} if own.get(path) != other.get(path))
        if different:
            fix = f"git pull on both, or: cd {clone} && rsync -aR {' '.join(parts)} {name}:{clone}/"
            found.append(Row("bad", what, f"not as here: {', '.join(different[:3])}{_more(different, 3)}", fix))
        else:
            text = f"{len(own)} files in {clone}" if what == "code" else ", ".join(sorted(own))
            found.append(Row("ok", what, text if facts is local else f"{text}, as here"))
    return found


def _venv(facts: Facts, reference: Reference) -> Row:
    local, venv, install = reference.local, reference.software.venv, _install(reference)
    problem, other, own = facts.get("venv"), facts.get("versions"), local.get("versions")
    if problem is None or other is None or own is None:
        return _failed(facts, "versions", "versions")
    if problem:
        return Row("bad", "versions", f"{venv}: {problem}", f"there: {install}")
    different = [name for name in own if own[name] != other.get(name)]
    if different:
        found = "; ".join(f"{name} {other.get(name) or 'unknown'}, here {own[name] or 'unknown'}" for name in different)
        fix = f"the same Python and checkout on both, then there: rm -rf {reference.clone}/{venv} && {install}"
        return Row("bad", "versions", found, fix)
    named = ", ".join(f"{name} {version}" for name, version in other.items() if name != "wheel")
    wheel = "" if other["wheel"] in CPU_WHEELS else f" ({other['wheel']})"
    return Row("ok", "versions", f"{named}{wheel}{'' if facts is local else ', as here'}")


def _data(facts: Facts, name: str, reference: Reference) -> list[Row]:
    training, own = reference.training, reference.data
    if training is None:
        return []
    if not training.needed:
        return [Row("ok", "data", f"{training.name}: dummy images, no files")]
    samples = facts.get("data")
    if samples is None:
        return [_failed(facts, "data", "data")]
    missing = [path for path in training.needed if "error" in samples[path]]
    if missing and training.drawn:
        return [Row("ok", "data", f"{training.name}: drawn when training starts, which takes about a minute")]
    if missing:
        copy = f"{_copy(missing[0], name, reference)}, or " if own else ""
        fix = f"{copy}set data_root= or rec= to its location"
        return [Row("bad", "data", f"{missing[0]}: {samples[missing[0]]['error']}", fix)]
    assert own is not None  # this host has the required files, so there is a reference
    different = [path for path in samples if not _alike(samples[path], own[path])]
    if different:
        path = different[0]
        text = f"{path}: {_describe(samples[path])}, on {reference.data_host} {_describe(own[path])}"
        return [Row("bad", "data", text + _more(different, 1), _copy(path, name, reference))]
    sizes = [sample["size"] for sample in samples.values() if "size" in sample]
    text = f"{training.name}: {len(sizes)} files, {format_size(sum(sizes))}"
    return [Row("ok", "data", text if samples is own else f"{text}, as on {reference.data_host} by size and samples")]


def _copy(path: str, name: str, reference: Reference) -> str:
    folder = os.path.dirname(path)
    return f"on {reference.data_host}: rsync -a --checksum {folder}/ {name}:{folder}/"


def _more(names: Sequence[str], shown: int) -> str:
    return f" and {len(names) - shown} more" if len(names) > shown else ""


def _alike(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    return first == second or ("error" in first and "error" in second)


def _describe(sample: Mapping[str, Any]) -> str:
    return f"{sample['size']} bytes ({sample['digest']})" if "size" in sample else str(sample["error"])


def _resources(slots: int, facts: Facts) -> list[Row]:
    memory, disk = facts.get("memory"), facts.get("disk")
    return [
        _failed(facts, "memory", "memory", "warn") if memory is None else _memory(memory),
        _failed(facts, "disk", "disk") if disk is None else _disk(disk),
        _processors(slots, facts),
    ]


def _memory(memory: Mapping[str, int]) -> Row:
    text = f"{format_size(memory['free'])} free of {format_size(memory['total'])}"
    if memory["free"] < MIN_MEMORY:
        return Row("warn", "memory", text, "end other programs there")
    return Row("ok", "memory", text)


def _disk(disk: Mapping[str, Any]) -> Row:
    text = f"{format_size(disk['free'])} free of {format_size(disk['total'])} ({disk['type']}) at {disk['folder']}"
    if not disk["writable"]:
        return Row("bad", "disk", f"{disk['folder']} cannot be written to", "set another output folder: models_root=")
    if disk["free"] < MIN_DISK * disk["total"]:
        return Row("warn", "disk", text, "free space, or set another output folder: models_root=")
    return Row("ok", "disk", text)


def _processors(slots: int, facts: Facts) -> Row:
    gpus, cores = facts.get("gpus"), facts.get("cores")
    wheel = facts.get("versions", {}).get("wheel", "")
    if gpus is None or cores is None:
        return _failed(facts, "processors", "gpus" if gpus is None else "cores", "warn")
    text = f"{len(gpus)} x {gpus[0]}" if gpus else "no GPU"
    text += f", {cores['processors']} CPUs, for {plural(slots, 'rank')}"
    if wheel not in CPU_WHEELS and (gpus or wheel != "torch"):  # PyTorch trains on the CPU of a host without GPUs
        if slots > len(gpus):
            fix = f"every rank needs its own GPU: {len(gpus)} slots, or see nvidia-smi -L there"
            return Row("bad", "processors", text, fix)
    elif slots > cores["processors"]:
        return Row("warn", "processors", text, "more ranks than CPUs slow each other down: use fewer slots")
    return Row("ok", "processors", text)


def _shared(facts: Facts, local: Facts, training: Training | None) -> list[Row]:
    if facts is local or facts.get("shared") is None:
        return []
    if facts["shared"]:
        return [Row("ok", "outputs", "the output folder is shared with this host")]
    required = training is not None and training.checkpoints
    fix = "set models_root= to a folder of a file server, or turn checkpoints off: checkpoint_every=0"
    return [Row("bad" if required else "warn", "outputs", "the output folder is not shared with this host", fix)]
