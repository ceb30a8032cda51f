"""Looks after checkpoints:  python -m partial_fc.checkpoint list|check|map ...

list FOLDER             the complete checkpoints in a folder, such as models/small-arcface-demo/checkpoints
check PATH              reads every byte of a checkpoint, or of all in a folder; exit code 1 if one is damaged
map OLD NEW OUT         writes a class map for --class-map from two identities.txt, by the names of the identities
"""

from __future__ import annotations

import argparse
import os
import sys

import numpy as np

from partial_fc.utils.atomic_io import replace_file

from .arrays import read_arrays
from .class_centers import SavedClasses
from .class_map import map_names
from .layout import MANIFEST
from .manager import CheckpointFolder
from .manifest import read_manifest
from .verify import check_layout, verify_file


def list_folder(path: str) -> None:
    """Prints a line for each complete checkpoint, newest first."""
    for _, step in _steps(path):
        try:
            manifest = read_manifest(step)
        except (OSError, ValueError) as error:
            print(f"{step}: {error}")
            continue
        size = sum(entry.bytes for entry in manifest.files.values())
        print(
            f"{step}: update {manifest.num_update}, {manifest.num_classes} classes of {manifest.ranks} ranks, "
            f"{size / 1e6:.1f} MB, {manifest.origin.get('time', '')}"
        )


def check(path: str) -> int:
    """Prints what is wrong with each checkpoint; returns the number of damaged ones."""
    damaged = 0
    for _, step in _steps(path):
        try:
            _check_step(step)
            print(f"{step}: every byte is as it was written")
        except (OSError, ValueError) as error:
            damaged += 1
            print(f"{step}: {error}")
    return damaged


def write_map(old: str, new: str, out: str) -> None:
    """Writes the class map of two files of names, and tells how many classes are kept."""
    before, now = _read_names(old), _read_names(new)
    found = map_names(before, now)
    replace_file(out, [("\n".join(map(str, found.tolist())) + "\n").encode()])
    kept = int(np.count_nonzero(found >= 0))
    print(f"{out}: {kept} classes are kept, {len(now) - kept} are new, {len(before) - kept} are gone")


def _check_step(step: str) -> None:
    manifest = read_manifest(step)
    check_layout(step, manifest)
    for name, entry in manifest.files.items():
        verify_file(step, name, entry)
        if name.endswith(".npz"):
            read_arrays(os.path.join(step, name))
    SavedClasses.of_checkpoint(step, manifest)


def _steps(path: str) -> list[tuple[int, str]]:
    if os.path.exists(os.path.join(path, MANIFEST)):
        return [(0, path)]
    found = CheckpointFolder(path, kept=1).complete()
    if not found:
        raise FileNotFoundError(f"there is no complete checkpoint in {path}")
    return found


def _read_names(path: str) -> dict[str, int]:
    """name -> class of lines ``class<TAB>name``."""
    with open(path, newline="\n", encoding="utf-8", errors="surrogateescape") as file:
        lines = [line.rstrip("\n").split("\t", 1) for line in file]
    if [line[0] for line in lines] != [str(number) for number in range(len(lines))] or any(len(x) < 2 for x in lines):
        raise ValueError(f"{path} must have lines 'class<TAB>name', in order: give an identities.txt")
    names = {line[1]: number for number, line in enumerate(lines)}
    if len(names) != len(lines):
        raise ValueError(f"{path} has a name more than once: which class is whose cannot be told")
    return names


def main() -> None:
    """Runs the command; an error is one sentence and exit code 1."""
    parser = argparse.ArgumentParser(
        prog="python -m partial_fc.checkpoint",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, words in (("list", ["folder"]), ("check", ["path"]), ("map", ["old", "new", "out"])):
        command = commands.add_parser(name)
        for word in words:
            command.add_argument(word)
    options = parser.parse_args()
    try:
        if options.command == "list":
            list_folder(options.folder)
        elif options.command == "check":
            sys.exit(1 if check(options.path) else 0)
        else:
            write_map(options.old, options.new, options.out)
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
