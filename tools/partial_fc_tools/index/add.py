"""Adds embeddings to an index without a rebuild. They must come from the same model and have new names."""

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

from partial_fc.utils.text import say

if TYPE_CHECKING:
    from .writer import Rows, Writer

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
        add_rows(lists, len(index.names), new.embeddings.__getitem__, len(new.names))
        index.write(lists, new.names)
    report(args.index, f"added {len(new.names):,}", lists)
    return 0


def add_rows(lists: "Writer", first: int, rows: "Rows", count: int) -> None:
    """Adds embeddings, see `Writer.add`, with a progress bar."""
    from partial_fc.utils.progress import progress

    with progress(count, "embedding", "adding") as bar:
        lists.add(first, rows, count, bar.update)


def check_distinct(where: str, names: Iterable[str], known: set[str]) -> None:
    """Adds names to the known ones; raises ValueError for a duplicate, since `remove` finds entries by their names."""
    for name in names:
        if name in known:
            raise ValueError(f"{where}: {name} would be in the index twice: names must differ")
        known.add(name)


def report(folder: str, change: str, lists: "Writer") -> None:
    """Prints what a command changed in an index."""
    say(f"{folder}: {change}, now {len(lists):,} embeddings")
