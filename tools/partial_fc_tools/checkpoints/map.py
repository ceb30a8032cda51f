"""Writes a class map for --class-map that matches two identities.txt by name.

Line i of the map is the old class of the new class i, or -1. Prints how many classes are kept, new and dropped.
"""

import argparse
import os

from partial_fc.checkpoint.class_map import NEW
from partial_fc.data.names import parse_names
from partial_fc.utils.cli import add_force
from partial_fc.utils.staging import staged_files
from partial_fc.utils.text import say

EXAMPLE = "old/identities.txt new/identities.txt map.txt"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("old", metavar="OLD", help="identities.txt of the old training set")
    parser.add_argument("new", metavar="NEW", help="identities.txt of the new training set")
    parser.add_argument("out", metavar="OUT", help="the class map")
    add_force(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    old = {name: number for number, name in enumerate(_read_names(args.old))}
    class_map = [old.get(name, NEW) for name in _read_names(args.new)]
    folder, name = os.path.split(args.out)
    with staged_files(folder, [name], args.force) as stage, open(os.path.join(stage, name), "w") as file:
        file.writelines(f"{number}\n" for number in class_map)
    kept = len(class_map) - class_map.count(NEW)
    say(f"{args.out}: classes: {kept} kept, {len(class_map) - kept} new, {len(old) - kept} dropped")
    return 0


def _read_names(path: str) -> list[str]:
    names = parse_names(path)
    if len(set(names)) != len(names):
        raise ValueError(f"{path} contains a name more than once, so classes cannot be mapped by name")
    return names
