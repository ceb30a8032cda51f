"""Writes a class map for --class-map from two identities.txt, by the names of the identities.

Line i of the map is the old class of the new class i, or -1. Prints how many classes are kept, new and dropped.
"""

from __future__ import annotations

import argparse

import numpy as np

from partial_fc.checkpoint.class_map import map_names
from partial_fc.data.tools.names import parse_names
from partial_fc.utils.atomic_io import replace_file

EXAMPLE = "old/identities.txt new/identities.txt map.txt"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("old", metavar="OLD", help="identities.txt of the set that was trained on")
    parser.add_argument("new", metavar="NEW", help="identities.txt of the set to train on")
    parser.add_argument("out", metavar="OUT", help="the class map")


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    old_names, new_names = _read_names(args.old), _read_names(args.new)
    class_map = map_names(old_names, new_names)
    replace_file(args.out, [("\n".join(map(str, class_map.tolist())) + "\n").encode()])
    kept = int(np.count_nonzero(class_map >= 0))
    print(f"{args.out}: classes: {kept} kept, {len(new_names) - kept} new, {len(old_names) - kept} dropped")
    return 0


def _read_names(path: str) -> dict[str, int]:
    """Reads lines ``class<TAB>name`` as name -> class."""
    in_order = parse_names(path)
    if in_order is None:
        raise ValueError(f"{path} must have lines 'class<TAB>name' in the order of the classes: give an identities.txt")
    names = {name: number for number, name in enumerate(in_order)}
    if len(names) != len(in_order):
        raise ValueError(f"{path} contains a name more than once, so classes cannot be mapped by name")
    return names
