"""Adds embeddings to an index without a rebuild. They must come from the same model and have new names."""

import argparse
from collections.abc import Iterable

from partial_fc.utils.text import say

EXAMPLE = "faces.index more_embeddings"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("index", metavar="INDEX", help="folder made by partial-fc index build")
    parser.add_argument("embeddings", metavar="EMBEDDINGS", help="embeddings made by partial-fc embed")


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    from partial_fc_tools.inference.index import read_index

    from .folder import changing

    with changing(args.index) as index:
        new = read_index(args.embeddings)
        index.check(args.embeddings, new.embeddings.shape[1], new.origin)
        lists = index.writer()
        check_distinct(args.embeddings, new.names, set(index.present()[1]))
        lists.add(len(index.names), new.embeddings.__getitem__, len(new.names))
        index.write(lists, new.names)
    say(f"{args.index}: added {len(new.names):,}, now {len(lists):,} embeddings")
    return 0


def check_distinct(source: str, names: Iterable[str], known: set[str]) -> None:
    """Adds names to the known ones; raises ValueError for a duplicate, since `remove` finds entries by their names."""
    for name in names:
        if name in known:
            raise ValueError(f"{source}: {name} would be in the index twice: names must differ")
        known.add(name)
