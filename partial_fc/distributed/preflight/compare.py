"""From facts of facts.py to rows of a table: what one host has, held against the one that training starts from."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from partial_fc.utils.text import plural

from .job_requirements import Training
from .row import Row

CODE = ("mxnet", "partial_fc", "setup-utils", "train_memory.py", "run.sh", "config.sh")
SETTINGS = ("config.py", "default.py")
CPU_WHEEL = "mxnet"
LEAST_MEMORY = 2**30  # bytes below which no training would begin
LEAST_DISK = 0.05  # share of a disk below which it counts as full
CLOCK = 5  # seconds apart, from which the times in logs and checkpoints mislead

Facts = Mapping[str, Any]


class Reference(NamedTuple):
    """What hosts are held against.

    Attributes:
        clone: the folder of the code, the same on every host.
        here: the facts of the host that the check runs on.
        data: the files of the data set on the first host that has what is needed of them; None: no host has.
        data_host: that host's name.
        training: what is to be trained; None if that is not known.
    """

    clone: str
    here: Facts
    data: Mapping[str, Any] | None
    data_host: str
    training: Training | None


def rows(name: str, slots: int, facts: Facts, standard: Reference) -> list[Row]:
    """All rows of a host but those of ssh, clock and network: its name, its ranks, what it answered."""
    clone, here = standard.clone, standard.here
    if facts is not here and not facts.get("code") and "code" not in facts["failed"]:
        fix = f"rsync -a --exclude .venv --exclude models {clone}/ {name}:{clone}/   then there: {_install(clone)}"
        return [Row("bad", "clone", f"there is none at {clone}", fix), *_room(slots, facts)]
    return [
        *_checkout(facts, here, name, clone),
        _venv(facts, here, clone),
        *_data(facts, name, standard),
        *_room(slots, facts),
        *_shared(facts, here, standard.training),
    ]


def has_data(facts: Facts, training: Training | None) -> bool:
    """Whether a host has all the files that are needed, and so can be what others are held against."""
    found = facts.get("data", {})
    return training is not None and all("size" in found.get(path, {}) for path in training.needed)


def clock(offset: float, doubt: float) -> Row:
    """Args: seconds by which a host's clock is ahead, and by which that may be wrong."""
    found = f"{abs(offset):.1f} s {'ahead' if offset > 0 else 'behind'}"
    if abs(offset) - doubt > CLOCK:
        return Row("warn", "clock", found, "set it there: timedatectl set-ntp true")
    return Row("ok", "clock", "as here" if abs(offset) <= doubt + 0.1 else found)


def size(number: float) -> str:
    """Bytes in words."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if number < 1024 or unit == "GiB":
            return f"{number:.0f} {unit}" if unit == "bytes" or number >= 100 else f"{number:.1f} {unit}"
        number /= 1024
    raise AssertionError


def _install(clone: str) -> str:
    return f"bash {clone}/setup-utils/install.sh"


def _failed(facts: Facts, what: str, fact: str, mark: str = "bad") -> Row:
    found = f"could not be looked at: {facts['failed'].get(fact, 'no answer')}"
    return Row(mark, what, found, "a file server that is away, or rights that are missing there?")


def _checkout(facts: Facts, here: Facts, name: str, clone: str) -> list[Row]:
    found = []
    for what, fact, parts in (("code", "code", CODE), ("settings", "settings", SETTINGS)):
        own, other = here.get(fact), facts.get(fact)
        if other is None or own is None:
            found.append(_failed(facts, what, fact))
            continue
        unlike = sorted(path for path in {*own, *other} if own.get(path) != other.get(path))
        if unlike:
            fix = f"git pull on both, or: cd {clone} && rsync -aR {' '.join(parts)} {name}:{clone}/"
            found.append(Row("bad", what, f"not as here: {', '.join(unlike[:3])}{_more(unlike, 3)}", fix))
        else:
            text = f"{len(own)} files in {clone}" if fact == "code" else ", ".join(sorted(own))
            found.append(Row("ok", what, text if facts is here else f"{text}, as here"))
    return found


def _venv(facts: Facts, here: Facts, clone: str) -> Row:
    wrong, other, own = facts.get("venv"), facts.get("versions"), here.get("versions")
    if wrong is None or other is None or own is None:
        return _failed(facts, "versions", "versions")
    if wrong:
        return Row("bad", "versions", f".venv: {wrong}", f"there: {_install(clone)}")
    unlike = [name for name in own if own[name] != other.get(name)]
    if unlike:
        found = "; ".join(f"{name} {other.get(name) or 'unknown'}, here {own[name] or 'unknown'}" for name in unlike)
        fix = f"the same Python and checkout on both, then there: rm -rf {clone}/.venv && {_install(clone)}"
        return Row("bad", "versions", found, fix)
    named = ", ".join(f"{name} {version}" for name, version in other.items() if name != "wheel")
    wheel = "" if other["wheel"] == CPU_WHEEL else f" ({other['wheel']})"
    return Row("ok", "versions", f"{named}{wheel}{'' if facts is here else ', as here'}")


def _data(facts: Facts, name: str, standard: Reference) -> list[Row]:
    training, own = standard.training, standard.data
    if training is None:
        return []
    if not training.needed:
        return [Row("ok", "data", f"{training.name}: dummy images, no files")]
    found = facts.get("data")
    if found is None:
        return [_failed(facts, "data", "data")]
    missing = [path for path in training.needed if "error" in found[path]]
    if missing and training.drawn:
        return [Row("ok", "data", f"{training.name}: drawn when training begins, which takes about a minute")]
    if missing:
        copy = f"{_copy(missing[0], name, standard)}, or " if own else ""
        fix = f"{copy}name the place where it is: data_root= or rec="
        return [Row("bad", "data", f"{missing[0]}: {found[missing[0]]['error']}", fix)]
    assert own is not None  # this host has what is needed, so there is one
    unlike = [path for path in found if not _alike(found[path], own[path])]
    if unlike:
        text = f"{unlike[0]}: {_of(found[unlike[0]])}, on {standard.data_host} {_of(own[unlike[0]])}"
        return [Row("bad", "data", text + _more(unlike, 1), _copy(unlike[0], name, standard))]
    there = [sample["size"] for sample in found.values() if "size" in sample]
    text = f"{training.name}: {len(there)} files, {size(sum(there))}"
    return [Row("ok", "data", text if found is own else f"{text}, as on {standard.data_host} by size and samples")]


def _copy(path: str, name: str, standard: Reference) -> str:
    folder = os.path.dirname(path)
    return f"on {standard.data_host}: rsync -a --checksum {folder}/ {name}:{folder}/"


def _more(names: Sequence[str], shown: int) -> str:
    return f" and {len(names) - shown} more" if len(names) > shown else ""


def _alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one == other or ("error" in one and "error" in other)


def _of(sample: Mapping[str, Any]) -> str:
    return f"{sample['size']} bytes ({sample['digest']})" if "size" in sample else str(sample["error"])


def _room(slots: int, facts: Facts) -> list[Row]:
    found = []
    memory, disk = facts.get("memory"), facts.get("disk")
    if memory is None:
        found.append(_failed(facts, "memory", "memory", "warn"))
    else:
        mark = "warn" if memory["free"] < LEAST_MEMORY else "ok"
        fix = "end what else runs there" if mark == "warn" else ""
        found.append(Row(mark, "memory", f"{size(memory['free'])} free of {size(memory['total'])}", fix))
    if disk is None:
        found.append(_failed(facts, "disk", "disk"))
    else:
        found.append(_disk(disk))
    return [*found, _processors(slots, facts)]


def _disk(disk: Mapping[str, Any]) -> Row:
    text = f"{size(disk['free'])} free of {size(disk['total'])} ({disk['type']}) at {disk['folder']}"
    if not disk["writable"]:
        return Row(
            "bad", "disk", f"{disk['folder']} cannot be written to", "another folder for the outputs: models_root="
        )
    if disk["free"] < LEAST_DISK * disk["total"]:
        return Row("warn", "disk", text, "make room, or another folder for the outputs: models_root=")
    return Row("ok", "disk", text)


def _processors(slots: int, facts: Facts) -> Row:
    gpus, cores = facts.get("gpus"), facts.get("cores")
    wheel = facts.get("versions", {}).get("wheel", "")
    if gpus is None or cores is None:
        return _failed(facts, "processors", "gpus" if gpus is None else "cores", "warn")
    text = f"{len(gpus)} x {gpus[0]}" if gpus else "no GPU"
    text += f", {cores['processors']} CPUs, for {plural(slots, 'rank')}"
    if wheel not in ("", CPU_WHEEL):
        if slots > len(gpus):
            return Row(
                "bad", "processors", text, f"a rank needs a GPU of its own: {len(gpus)} slots, or nvidia-smi -L there"
            )
    elif slots > cores["processors"]:
        return Row("warn", "processors", text, "more ranks than CPUs slow each other down: fewer slots")
    return Row("ok", "processors", text)


def _shared(facts: Facts, here: Facts, training: Training | None) -> list[Row]:
    if facts is here or facts.get("shared") is None:
        return []
    if facts["shared"]:
        return [Row("ok", "outputs", "in a folder that this host sees, too")]
    refused = training is not None and training.checkpoints
    fix = "models_root=/a/folder/on/a/file/server, or no checkpoints to go on from: checkpoint_every=0"
    return [Row("bad" if refused else "warn", "outputs", "in a folder of its own", fix)]
