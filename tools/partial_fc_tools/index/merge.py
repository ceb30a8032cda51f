"""Adds all entries of other indexes to INDEX without a rebuild; the others stay. Let INDEX be the largest one.

The indexes must have the same model and dtype, and different names.
"""

import argparse
from functools import partial
from typing import TYPE_CHECKING

from partial_fc.utils.text import say

if TYPE_CHECKING:
    import numpy as np

    from .ivf import Lists

EXAMPLE = "faces.index more.index"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("index", metavar="INDEX", help="folder made by partial-fc index build")
    parser.add_argument("others", metavar="OTHER", nargs="+", help="indexes whose entries are added")


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    from .add import check_distinct
    from .folder import IndexFolder, changing

    with changing(args.index) as index:
        lists, known = index.writer(), set(index.present()[1])
        added: list[str] = []
        for path in args.others:
            other = IndexFolder(path)
            index.check(path, other.manifest.dimension, other.manifest.origin)
            if other.manifest.dtype != index.manifest.dtype:
                dtypes = f"{path} holds {other.manifest.dtype}, {args.index} {index.manifest.dtype}"
                raise ValueError(f"{dtypes}: build one of them again")
            other.verify()
            ids, names = other.present()
            check_distinct(path, names, known)
            lists.add(len(index.names) + len(added), partial(_rows, other.lists, ids), len(names))
            added += names
        index.write(lists, added)
    say(f"{args.index}: added {len(added):,}, now {len(lists):,} embeddings")
    return 0


def _rows(lists: "Lists", ids: "np.ndarray", part: "slice | np.ndarray") -> "np.ndarray":
    return lists.rows(ids[part])
