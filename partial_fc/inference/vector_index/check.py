"""Measures how often an index finds what exact search finds: the entry nearest to one of its entries, for a sample.

Of entries that are equally near, such as copies of an image, either one counts.
"""

import argparse
from typing import TYPE_CHECKING

from partial_fc.utils.cli import add_seed, whole_number

if TYPE_CHECKING:
    import numpy as np

    from .ivf import Lists

ROUNDING = 1e-6  # of a cosine in float32
EXAMPLE = "faces.index --queries 1000"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("index", metavar="INDEX", help="folder made by partial-fc index build")
    parser.add_argument("--queries", type=whole_number(1), default=200, metavar="N", help="entries (default: 200)")
    add_seed(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    import numpy as np

    from partial_fc.utils.progress import progress

    from .folder import IndexFolder

    index = IndexFolder(args.index)
    lists = index.lists
    entries = np.flatnonzero(lists.present(len(index.names)))
    if len(entries) < 2:
        raise ValueError(f"{args.index} has {len(entries)} entries: no entry has a nearest other one")
    sample = np.random.default_rng(args.seed).choice(entries, min(args.queries, len(entries)), replace=False)
    found = 0
    with progress(len(sample), "query", "searching") as bar:
        for number, query in zip(sample, lists.rows(sample)):
            approximate, exact = (_nearest_other(lists, number, query, exact) for exact in (False, True))
            found += approximate >= exact - ROUNDING
            bar.update(1)
    print(f"{args.index}: recall of rank 1 is {found / len(sample):.4f} ({found} of {len(sample)} entries)")
    return 0


def _nearest_other(lists: "Lists", number: int, query: "np.ndarray", exact: bool) -> float:
    """Returns the cosine of the nearest entry besides the query's own, -inf if none is found."""
    numbers, cosines = lists.nearest(query, 2, exact)
    return max(cosines[numbers != number].tolist(), default=float("-inf"))
