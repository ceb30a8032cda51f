"""Verification of a checkpoint against its manifest."""

import hashlib
import os
from collections.abc import Callable

from partial_fc.utils.atomic_io import PART, Entry
from partial_fc.utils.regular_files import open_regular

from .layout import is_file_name, step_number
from .manifest import Manifest, read_manifest


def verify_share(path: str, rank: int, size: int, report_progress: Callable[[], None]) -> Manifest:
    """Verifies a rank's share of a checkpoint's files, every ``size``-th one from ``rank`` on; returns the manifest.

    ``report_progress`` is called every few MB.

    Raises:
        OSError: A file is missing or cannot be read.
        ValueError: A file is damaged or surplus, or the folder is named after another update.
    """
    manifest = read_manifest(path)
    if step_number(os.path.basename(os.path.abspath(path))) not in (None, manifest.num_update):
        raise ValueError(f"{path} contains update {manifest.num_update}, not the one in its name: rename it")
    names = set(os.listdir(path))
    missing = sorted(set(manifest.files) - names)
    if missing:
        raise FileNotFoundError(f"{os.path.join(path, missing[0])} is missing: use another checkpoint")
    surplus = sorted(name for name in names - set(manifest.files) if is_file_name(name))
    if surplus:
        raise ValueError(f"{os.path.join(path, surplus[0])} is not in the manifest: move it to another folder")
    for name, entry in sorted(manifest.files.items())[rank::size]:
        verify_file(path, name, entry, report_progress)
    return manifest


def verify_file(path: str, name: str, entry: Entry, report_progress: Callable[[], None]) -> None:
    """Reads a whole file of a checkpoint and compares its size and SHA-256."""
    path = os.path.join(path, name)
    digest = hashlib.sha256()
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size != entry.bytes:
            raise ValueError(f"{path} has {size} bytes, expected {entry.bytes}: use another checkpoint")
        while part := file.read(PART):
            report_progress()
            digest.update(part)
    if digest.hexdigest() != entry.sha256:
        raise ValueError(f"{path} is damaged, its SHA-256 differs from the manifest's: use another checkpoint")
