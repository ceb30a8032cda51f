"""Adds all entries of other indexes to an index, without a rebuild; the others stay. Begin with the largest one.

They must be of the same model and dtype, and have other names.
"""

import argparse
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from .ivf import Lists

EXAMPLE = "faces.index more.index"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("index", metavar="INDEX", help="folder made by partial-fc index build")
    parser.add_argument("others", metavar="OTHER", nargs="+", help="indexes to add")


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    from .add import add_rows, check_distinct, report
    from .folder import IndexFolder, changing

    with changing(args.index) as index:
        lists, known = index.writer(), set(index.present()[1])
        added: list[str] = []
        for path in args.others:
            other = IndexFolder(path)
            about = other.manifest
            index.check(path, about.dimension, about.origin)
            if about.dtype != index.manifest.dtype:
                dtypes = f"{path} holds {about.dtype}, {args.index} {index.manifest.dtype}"
                raise ValueError(f"{dtypes}: build one of them again")
            other.verify()
            numbers, more = other.present()
            check_distinct(path, more, known)
            add_rows(lists, len(index.names) + len(added), partial(_rows, other.lists, numbers), len(more))
            added += more
        index.write(lists, added)
    report(args.index, f"added {len(added):,}", lists)
    return 0


def _rows(source: "Lists", numbers: "np.ndarray", part: "slice | np.ndarray") -> "np.ndarray":
    return source.rows(numbers[part])
