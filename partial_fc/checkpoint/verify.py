"""Is a checkpoint what its manifest says?"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable

from partial_fc.utils.atomic_io import PART, Entry

from .layout import is_file_name
from .manifest import Manifest


def check_layout(path: str, manifest: Manifest) -> None:
    """Makes sure that a checkpoint's folder has the files of its manifest and no others of such names.

    Raises:
        OSError: one is missing.
        ValueError: there is one too many.
    """
    there = set(os.listdir(path))
    missing = sorted(set(manifest.files) - there)
    if missing:
        raise FileNotFoundError(f"{os.path.join(path, missing[0])} is missing: take another checkpoint")
    surplus = sorted(name for name in there - set(manifest.files) if is_file_name(name))
    if surplus:
        raise ValueError(f"{os.path.join(path, surplus[0])} is not in the manifest: whose is it? Move it elsewhere")


def verify_file(path: str, name: str, entry: Entry, alive: Callable[[], None] = lambda: None) -> None:
    """Reads a file of a checkpoint's folder to the end.

    Args:
        path: of the folder.
        name, entry: of the file, out of the manifest.
        alive: called every few MB.

    Raises:
        OSError: it cannot be read.
        ValueError: its bytes are not those that were written.
    """
    path = os.path.join(path, name)
    size = os.path.getsize(path)
    if size != entry.bytes:
        raise ValueError(f"{path} has {size} bytes, {entry.bytes} were written: take another checkpoint")
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while part := file.read(PART):
            alive()
            digest.update(part)
    if digest.hexdigest() != entry.sha256:
        raise ValueError(f"{path} is damaged, its SHA-256 is not that of what was written: take another checkpoint")
