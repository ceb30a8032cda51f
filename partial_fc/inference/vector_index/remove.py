"""Removes embeddings from an index by their names, without a rebuild."""

import argparse

EXAMPLE = "faces.index names.txt"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("index", metavar="INDEX", help="folder made by partial-fc index build")
    parser.add_argument("names", metavar="NAMES", help="text file with one name per line, as embed writes it")


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    import numpy as np

    from partial_fc.inference.index import read_names

    from .add import report
    from .folder import changing

    wanted = set(read_names(args.names))
    if not wanted:
        raise ValueError(f"{args.names} holds no names: give a text file with one per line")
    with changing(args.index) as index:
        lists = index.writer()
        found = {name: number for number, name in zip(*index.present()) if name in wanted}
        missing = sorted(wanted - found.keys())
        if missing:
            share = f"{len(missing)} of {len(wanted)} names are missing"
            raise ValueError(f"{args.index} holds no {missing[0]} ({share}): none was removed")
        lists.remove(np.array([*found.values()], int))
        index.write(lists)
    report(args.index, f"removed {len(found):,}", lists)
    return 0
