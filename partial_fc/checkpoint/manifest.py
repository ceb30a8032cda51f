"""What a checkpoint consists of, as JSON: read as if an enemy had written it."""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

from partial_fc.utils.atomic_io import Entry, replace_file

from .layout import MANIFEST, files_of, is_file_name

FORMAT, VERSION = "partial_fc checkpoint", 1
LARGEST = 64 << 20  # bytes of a manifest; 10,000 ranks need some 10 MB
MAX_RANKS = 10**6
LIMIT = 2**62  # of any number
_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Manifest:
    """A checkpoint.

    Attributes:
        num_update: updates that were done.
        num_classes, embedding_size: C and E.
        ranks: R of the training that wrote it.
        shards: (first class, behind the last) of each rank; they follow one another from 0 to C.
        files: name -> Entry, of all files but this one.
        state: of the training, the same for all ranks.
        rank_states: of each rank.
        origin: how the training was started, for people.
    """

    num_update: int
    num_classes: int
    embedding_size: int
    ranks: int
    shards: list
    files: dict
    state: dict
    rank_states: list
    origin: dict


def write_manifest(folder: str, manifest: Manifest) -> None:
    """Writes ``manifest.json``; it has that name when it is on the disk.

    Raises:
        OSError: it could not be written.
    """
    content = {"format": FORMAT, "version": VERSION, **asdict(manifest)}
    content["files"] = {name: {"bytes": e.bytes, "sha256": e.sha256} for name, e in sorted(manifest.files.items())}
    content = json.loads(json.dumps(content, allow_nan=False))  # numbers as keys are text when they are read
    content["sha256"] = _digest(content)
    text = json.dumps(content, indent=1) + "\n"
    replace_file(os.path.join(folder, MANIFEST), [text.encode()])


def read_manifest(path: str) -> Manifest:
    """Reads the manifest in a checkpoint's folder.

    Raises:
        OSError: there is none, or it cannot be read.
        ValueError: it is damaged, or says what cannot be; names it.
    """
    path = os.path.join(path, MANIFEST)
    if not os.path.isfile(path):
        raise FileNotFoundError(f"{path} is not there: give the folder of a complete checkpoint")
    try:
        content = _load(path)
        if content.get("format") != FORMAT or content.get("version") != VERSION:
            _refuse(f"it is of {content.get('format')!r}, version {content.get('version')!r}, not of this program's")
        if content.pop("sha256", None) != _digest(content):
            _refuse("its own SHA-256 is another")
        return _checked(content)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}; use another checkpoint") from None


def _load(path: str) -> dict:
    if os.path.getsize(path) > LARGEST:
        _refuse(f"it has {os.path.getsize(path)} bytes")
    with open(path, encoding="utf-8") as file:
        content = json.load(file, object_pairs_hook=_no_doubles, parse_constant=_refuse)
    if not isinstance(content, dict):
        _refuse("it is no object of JSON")
    return content


def _digest(content: dict) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _no_doubles(pairs: list) -> dict:
    names = [name for name, _ in pairs]
    if len(set(names)) != len(names):
        _refuse(f"a name is there twice, one of {sorted(set(names))[:5]}")
    return dict(pairs)


def _checked(content: dict) -> Manifest:
    numbers = {name: _number(name, content[name]) for name in ("num_update", "num_classes", "embedding_size", "ranks")}
    ranks = numbers["ranks"]
    if not 1 <= ranks <= MAX_RANKS:
        _refuse(f"it has {ranks} ranks")
    for name, kind in (("shards", list), ("files", dict), ("state", dict), ("rank_states", list), ("origin", dict)):
        if not isinstance(content[name], kind):
            _refuse(f"{name} is {type(content[name]).__name__}")
    if len(content["rank_states"]) != ranks or not all(isinstance(state, dict) for state in content["rank_states"]):
        _refuse(f"it has no state of each of its {ranks} ranks")
    return Manifest(
        **numbers,
        shards=_shards(content["shards"], ranks, numbers["num_classes"]),
        files=_files(content["files"], ranks),
        state=content["state"],
        rank_states=content["rank_states"],
        origin=content["origin"],
    )


def _number(name: str, value: Any) -> int:
    if type(value) is not int or not 0 <= value < LIMIT:
        _refuse(f"{name} is {str(value)[:40]}")
    return value


def _shards(shards: list, ranks: int, num_classes: int) -> list[tuple[int, int]]:
    if len(shards) != ranks:
        _refuse(f"it has {len(shards)} shards of {ranks} ranks")
    checked, behind = [], 0
    for rank, shard in enumerate(shards):
        start, stop = (_number("a shard", value) for value in shard)
        if start != behind or stop < start:
            _refuse(f"rank {rank} holds classes {start}..{stop}, but those before it end at {behind}")
        checked.append((start, stop))
        behind = stop
    if behind != num_classes:
        _refuse(f"its shards hold {behind} classes of {num_classes}")
    return checked


def _files(files: dict, ranks: int) -> dict[str, Entry]:
    wrong = [name for name in files if not is_file_name(name)]
    if wrong:
        _refuse(f"it names the file {wrong[0][:80]!r}, which no checkpoint has")
    needed = files_of(ranks)
    if set(files) != needed:
        _refuse(f"of its {ranks} ranks it has, or lacks, {sorted(set(files) ^ needed)[0]}")
    for name, entry in files.items():
        if set(entry) != {"bytes", "sha256"} or not _SHA256.fullmatch(entry["sha256"]):
            _refuse(f"what it says of {name} is not its size and SHA-256")
    return {name: Entry(_number(name, entry["bytes"]), entry["sha256"]) for name, entry in files.items()}


def _refuse(why: str) -> NoReturn:
    raise ValueError(why)
