"""The manifest of a checkpoint: sizes, hashes and state as JSON, which is checked strictly when it is read."""

import hashlib
import json
import os
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from itertools import chain

from partial_fc.layer.center_states import CENTER_STATES, center_widths
from partial_fc.utils.atomic_io import Entry, replace_file
from partial_fc.utils.json_object import read_object

from .layout import MANIFEST, files_of, is_file_name

FORMAT, VERSION = "partial_fc checkpoint", 1
LARGEST = 16 << 20  # maximum bytes of a manifest; 10,000 ranks need some 10 MB


@dataclass(frozen=True)
class Manifest:
    """The content of a checkpoint."""

    num_update: int  # number of updates done
    num_classes: int  # C
    embedding_size: int  # E
    ranks: int  # number of ranks of the training that wrote the checkpoint
    shards: list  # (first class, last class + 1) of each rank, consecutive from 0 to C
    files: dict  # name -> Entry, for all files except the manifest
    state: dict  # state of the training, the same on all ranks
    rank_states: list  # state of each rank
    origin: dict  # settings and versions of the training that wrote the checkpoint

    @property
    def center_widths(self) -> dict[str, int]:
        """Numbers per class of the centers, "weight", and of each state of their optimizer."""
        sgd_widths = center_widths(self.embedding_size, CENTER_STATES["sgd"])  # earlier versions had only SGD
        widths: dict[str, int] = self.state.get("center_widths", sgd_widths)
        return widths

    @property
    def heads(self) -> Collection[str]:
        """Names of the heads after the first."""
        heads: dict[str, dict] = self.state.get("heads", {})
        return heads.keys()

    def of_head(self, name: str) -> "Manifest":
        """Returns the manifest with the classes of a head and with the ranks' states of its sampler; "" is the first.

        Raises KeyError if there is no such head.
        """
        if not name:
            return self
        head, states = self.state["heads"][name], [{"sampler": state["heads"][name]} for state in self.rank_states]
        shards = [(start, stop) for start, stop in head["shards"]]
        state = {"center_widths": head["center_widths"]}  # without the rest, whose copies would fill the memory
        # A damaged manifest may have no shards.
        return replace(self, num_classes=shards[-1][1] if shards else 0, shards=shards, state=state, rank_states=states)


def write_manifest(folder: str, manifest: Manifest) -> None:
    """Writes ``manifest.json`` atomically. Raises OSError, or ValueError if it would be too large to be read."""
    content = {"format": FORMAT, "version": VERSION, **asdict(manifest)}
    content["files"] = {name: {"bytes": e.bytes, "sha256": e.sha256} for name, e in sorted(manifest.files.items())}
    # Round trip, so that the digest is computed from what will be read: numeric keys become strings.
    content = json.loads(json.dumps(content, allow_nan=False))
    content["sha256"] = _digest(content)
    text = (json.dumps(content, indent=1) + "\n").encode()
    if len(text) > LARGEST:
        raise ValueError(
            f"the manifest of the checkpoint would have {len(text):,} bytes, more than {LARGEST:,}: train fewer heads, "
            "or on fewer ranks"
        )
    replace_file(os.path.join(folder, MANIFEST), [text])


def read_manifest(path: str) -> Manifest:
    """Reads the manifest in a checkpoint's folder.

    Raises:
        OSError: The manifest does not exist or cannot be read.
        ValueError: The manifest is damaged or inconsistent. The message names the file.
    """
    path = os.path.join(path, MANIFEST)
    if not os.path.isfile(path):
        raise FileNotFoundError(f"{path} does not exist: give the folder of a complete checkpoint, or resume=auto")
    try:
        content = read_object(path, LARGEST)
        if content.get("format") != FORMAT or content.get("version") != VERSION:
            raise ValueError(
                f"its format is {content.get('format')!r} version {content.get('version')!r}, "
                f"expected {FORMAT!r} version {VERSION}"
            )
        if content.pop("sha256", None) != _digest(content):
            raise ValueError("its SHA-256 differs from the recorded one")
        return _checked(content)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}; use another checkpoint") from None


def _digest(content: dict) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _checked(content: dict) -> Manifest:
    """Checks and returns the manifest. A correct SHA-256 is not enough, as a stranger may have written the file."""
    fields = {name: value for name, value in content.items() if name not in ("format", "version")}
    files = {name: Entry(**entry) for name, entry in content["files"].items()}
    manifest = Manifest(**{**fields, "files": files, "shards": [(start, stop) for start, stop in content["shards"]]})
    ranks, heads = manifest.ranks, [manifest.of_head(name) for name in ("", *manifest.heads)]
    sizes = [entry.bytes for entry in files.values()]
    counts = (ranks, manifest.num_update, manifest.num_classes, manifest.embedding_size, *sizes)
    shards = chain.from_iterable(head.shards for head in heads)
    if any(type(count) is not int or not 0 <= count < 2**63 for count in (*counts, *chain(*shards))):
        raise ValueError("it has a number that is not a count")
    if any(type(state) is not dict for state in (manifest.state, manifest.origin, *manifest.rank_states)):
        raise ValueError("it has a state that is not a JSON object")
    for head in heads:
        _check_classes(head)
    position = manifest.state.get("data")
    for each in () if position is None else (position, *position.get("heads", {}).values()):
        if not (type(each) is dict and type(each.get("epoch")) is type(each.get("images")) is int):
            raise ValueError(f"its position in the data is {str(each)[:100]}")
    first, *others = (head.center_widths for head in heads)
    surplus = set(files)
    # One at a time, because a hostile manifest may claim any number of ranks.
    for name in files_of(ranks, first, dict(zip(manifest.heads, others))):
        if not is_file_name(name):
            raise ValueError(f"it has invalid names of states or heads, such as in {name[:80]!r}")
        if name not in files:
            raise ValueError(f"the file {name[:80]!r} is missing for {ranks} ranks")
        surplus.remove(name)
    if surplus:
        raise ValueError(f"the file {min(surplus)[:80]!r} is surplus for {ranks} ranks")
    return manifest


def _check_classes(head: Manifest) -> None:
    """Checks the shards and the widths of a head's centers."""
    if not len(head.shards) == len(head.rank_states) == head.ranks or head.ranks < 1:
        states = len(head.rank_states)
        raise ValueError(f"it has {len(head.shards)} shards and {states} rank_states of {head.ranks} ranks")
    starts, stops = zip(*head.shards)
    if (0, *stops) != (*starts, head.num_classes) or any(start > stop for start, stop in head.shards):
        raise ValueError(f"its shards do not hold each of {head.num_classes} classes once, in order")
    widths = head.center_widths
    if type(widths) is not dict or any(type(width) is not int or width < 1 for width in widths.values()):
        raise ValueError(f"its center_widths {str(widths)[:100]} are not numbers by name")
