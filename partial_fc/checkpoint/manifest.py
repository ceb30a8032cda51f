"""The manifest of a checkpoint: sizes, hashes and state as JSON, checked strictly when read."""

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
LIMIT = 2**62  # exclusive upper bound of all numbers
_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Manifest:
    """The content of a checkpoint.

    Attributes:
        num_update: number of updates done.
        num_classes, embedding_size: C and E.
        ranks: R of the training that wrote it.
        shards: (first class, last class + 1) of each rank, consecutive from 0 to C.
        files: name -> Entry, of all files except the manifest.
        state: of the training, the same on all ranks.
        rank_states: state of each rank.
        origin: settings and versions of the training that wrote it.
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
    """Writes ``manifest.json`` atomically.

    Raises:
        OSError: It cannot be written.
    """
    content = {"format": FORMAT, "version": VERSION, **asdict(manifest)}
    content["files"] = {name: {"bytes": e.bytes, "sha256": e.sha256} for name, e in sorted(manifest.files.items())}
    content = json.loads(json.dumps(content, allow_nan=False))  # as it will be read: numeric keys become strings
    content["sha256"] = _digest(content)
    text = json.dumps(content, indent=1) + "\n"
    replace_file(os.path.join(folder, MANIFEST), [text.encode()])


def read_manifest(path: str) -> Manifest:
    """Reads the manifest in a checkpoint's folder.

    Raises:
        OSError: It does not exist or cannot be read.
        ValueError: It is damaged or inconsistent; names the file.
    """
    path = os.path.join(path, MANIFEST)
    if not os.path.isfile(path):
        raise FileNotFoundError(f"{path} does not exist: give the folder of a complete checkpoint")
    try:
        content = _load(path)
        if content.get("format") != FORMAT or content.get("version") != VERSION:
            _refuse(
                f"its format is {content.get('format')!r} version {content.get('version')!r}, "
                f"expected {FORMAT!r} version {VERSION}"
            )
        if content.pop("sha256", None) != _digest(content):
            _refuse("its SHA-256 differs from the recorded one")
        return _checked(content)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}; use another checkpoint") from None


def _load(path: str) -> dict:
    if os.path.getsize(path) > LARGEST:
        _refuse(f"it has {os.path.getsize(path)} bytes, expected {LARGEST} at most")
    with open(path, encoding="utf-8") as file:
        content = json.load(file, object_pairs_hook=_unique_keys, parse_constant=_refuse)
    if not isinstance(content, dict):
        _refuse("it is not a JSON object")
    return content


def _digest(content: dict) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _unique_keys(pairs: list) -> dict:
    names = [name for name, _ in pairs]
    if len(set(names)) != len(names):
        _refuse(f"an object has a duplicate key, among {sorted(set(names))[:5]}")
    return dict(pairs)


def _checked(content: dict) -> Manifest:
    numbers = {name: _number(name, content[name]) for name in ("num_update", "num_classes", "embedding_size", "ranks")}
    ranks = numbers["ranks"]
    if not 1 <= ranks <= MAX_RANKS:
        _refuse(f"ranks is {ranks}, expected 1 to {MAX_RANKS}")
    for name, kind in (("shards", list), ("files", dict), ("state", dict), ("rank_states", list), ("origin", dict)):
        if not isinstance(content[name], kind):
            _refuse(f"{name} is a {type(content[name]).__name__}, expected a {kind.__name__}")
    if len(content["rank_states"]) != ranks or not all(isinstance(state, dict) for state in content["rank_states"]):
        _refuse(f"rank_states must hold an object for each of the {ranks} ranks")
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
        _refuse(f"{name} is {str(value)[:40]}, expected an integer of 0 or more")
    return value


def _shards(shards: list, ranks: int, num_classes: int) -> list[tuple[int, int]]:
    if len(shards) != ranks:
        _refuse(f"it has {len(shards)} shards, expected {ranks}, one per rank")
    checked, end = [], 0
    for rank, shard in enumerate(shards):
        start, stop = (_number("a shard", value) for value in shard)
        if start != end or stop < start:
            _refuse(f"the shard of rank {rank} is {start}..{stop}, but the previous shard ends at {end}")
        checked.append((start, stop))
        end = stop
    if end != num_classes:
        _refuse(f"its shards hold {end} classes, expected {num_classes}")
    return checked


def _files(files: dict, ranks: int) -> dict[str, Entry]:
    wrong = [name for name in files if not is_file_name(name)]
    if wrong:
        _refuse(f"it lists the file {wrong[0][:80]!r}, which is not a file name of checkpoints")
    needed = files_of(ranks)
    if set(files) != needed:
        name = sorted(set(files) ^ needed)[0]
        _refuse(f"{name} is {'missing' if name in needed else 'surplus'} for {ranks} ranks")
    for name, entry in files.items():
        if set(entry) != {"bytes", "sha256"} or not _SHA256.fullmatch(entry["sha256"]):
            _refuse(f"the entry of {name} is not a size and a SHA-256")
    return {name: Entry(_number(name, entry["bytes"]), entry["sha256"]) for name, entry in files.items()}


def _refuse(why: str) -> NoReturn:
    raise ValueError(why)
