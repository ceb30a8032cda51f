"""Lists and verifies checkpoints, and makes class maps:  python -m partial_fc.checkpoint list|check|map ...

list FOLDER             lists the complete checkpoints in a folder, such as models/small-arcface-demo/checkpoints
check PATH              verifies a checkpoint, or all in a folder, byte by byte; exit code 1 if one is damaged
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
    """Prints one line per complete checkpoint, newest first."""
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
    """Prints the state of each checkpoint and returns the number of damaged ones."""
    damaged = 0
    for _, step in _steps(path):
        try:
            _check_step(step)
            print(f"{step}: undamaged, all files verified")
        except (OSError, ValueError) as error:
            damaged += 1
            print(f"{step}: {error}")
    return damaged


def write_map(old: str, new: str, out: str) -> None:
    """Writes the class map between two files of names and prints how many classes are kept, new and dropped."""
    old_names, new_names = _read_names(old), _read_names(new)
    class_map = map_names(old_names, new_names)
    replace_file(out, [("\n".join(map(str, class_map.tolist())) + "\n").encode()])
    kept = int(np.count_nonzero(class_map >= 0))
    print(f"{out}: classes: {kept} kept, {len(new_names) - kept} new, {len(old_names) - kept} dropped")


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
    steps = CheckpointFolder(path, kept=1).complete()
    if not steps:
        raise FileNotFoundError(f"no complete checkpoint in {path}: give the folder checkpoints of a training")
    return steps


def _read_names(path: str) -> dict[str, int]:
    """Reads lines ``class<TAB>name`` as name -> class."""
    with open(path, newline="\n", encoding="utf-8", errors="surrogateescape") as file:
        lines = [line.rstrip("\n").split("\t", 1) for line in file]
    if [line[0] for line in lines] != [str(number) for number in range(len(lines))] or any(len(x) < 2 for x in lines):
        raise ValueError(f"{path} must have lines 'class<TAB>name' in the order of the classes: give an identities.txt")
    names = {line[1]: number for number, line in enumerate(lines)}
    if len(names) != len(lines):
        raise ValueError(f"{path} contains a name more than once, so classes cannot be mapped by name")
    return names


def main() -> None:
    """Runs the command; an error is printed as one line and ends it with exit code 1."""
    parser = argparse.ArgumentParser(
        prog="python -m partial_fc.checkpoint",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, arguments in (("list", ["folder"]), ("check", ["path"]), ("map", ["old", "new", "out"])):
        command = commands.add_parser(name)
        for argument in arguments:
            command.add_argument(argument)
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
