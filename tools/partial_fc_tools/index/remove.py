"""Removes embeddings from an index by their names, without a rebuild."""

import argparse

from partial_fc.utils.text import say

EXAMPLE = "faces.index names.txt"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("index", metavar="INDEX", help="folder made by partial-fc index build")
    parser.add_argument("names", metavar="NAMES", help="text file with one name per line, as embed writes it")


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    import numpy as np

    from partial_fc_tools.inference.index import read_names

    from .folder import changing

    listed = read_names(args.names)
    wanted = set(listed)
    if not wanted:
        raise ValueError(f"{args.names} has no names: give a text file with one name per line")
    with changing(args.index) as index:
        lists = index.writer()
        ids = {name: entry_id for entry_id, name in zip(*index.present()) if name in wanted}
        missing = [line for line, name in enumerate(listed) if name not in ids]
        if missing:
            where, name = f"{args.names}, line {missing[0] + 1}", listed[missing[0]]
            share = f"{len(missing)} of {len(listed)} names are missing"
            raise ValueError(f"{where}: {args.index} has no entry {name} ({share}): none was removed")
        lists.remove(np.array([*ids.values()], int))
        index.write(lists)
    say(f"{args.index}: removed {len(ids):,}, now {len(lists):,} embeddings")
    return 0
