"""Checkpoints of a training: reading, writing, verifying. layout.py documents the names of the files."""

from partial_fc.utils.atomic_io import Entry, replace_file, write_file

from .arrays import array_chunks, check_finite, npz_chunks, open_rows, read_arrays
from .class_centers import SavedClasses
from .class_map import read_class_map
from .manager import CheckpointFolder
from .manifest import Manifest, read_manifest, write_manifest
from .model_format import ModelFormat
from .verify import verify_share

__all__ = [
    "CheckpointFolder",
    "ModelFormat",
    "Entry",
    "Manifest",
    "SavedClasses",
    "array_chunks",
    "check_finite",
    "npz_chunks",
    "open_rows",
    "read_arrays",
    "read_class_map",
    "read_manifest",
    "replace_file",
    "verify_share",
    "write_file",
    "write_manifest",
]
