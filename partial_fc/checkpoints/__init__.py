"""Checkpoints of a training: their files, what is in them, and which is complete. See layout.py for the names."""

from partial_fc.checkpoints.arrays import array_chunks, npz_chunks, open_rows, read_arrays
from partial_fc.checkpoints.class_map import map_names, read_class_map
from partial_fc.checkpoints.classes import SavedClasses
from partial_fc.checkpoints.folder import CheckpointFolder
from partial_fc.checkpoints.manifest import Manifest, read_manifest, write_manifest
from partial_fc.checkpoints.verifying import check_layout, verify_file
from partial_fc.checkpoints.writing import Entry, replace_file, write_file

__all__ = [
    "CheckpointFolder",
    "Entry",
    "Manifest",
    "SavedClasses",
    "array_chunks",
    "check_layout",
    "map_names",
    "npz_chunks",
    "open_rows",
    "read_arrays",
    "read_class_map",
    "read_manifest",
    "replace_file",
    "verify_file",
    "write_file",
    "write_manifest",
]
