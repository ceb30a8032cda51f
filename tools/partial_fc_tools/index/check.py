"""Reads all of an index, and compares it with embeddings that were added, of which the index keeps a thousand.

Refuses an index whose bytes are not those that were written. Measures how near its entries are to the embeddings that
were added, and how often it finds what exact search finds: the entry nearest to one of these besides its own. Of
entries that are equally near, such as copies of an image, either one counts. The exit code is 1 if an entry is another
than what was added.
"""

import argparse
import sys
from typing import TYPE_CHECKING

from partial_fc.utils.cli import add_seed, whole_number
from partial_fc.utils.text import say

if TYPE_CHECKING:
    import numpy as np

    from .ivf import Lists

ROUNDING = 1e-6  # of a cosine in float32
SAME = 0.98  # least cosine of an entry to what was added; bytes cost 0.005 each time that they are made anew, at most
EXAMPLE = "faces.index --queries 1000"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("index", metavar="INDEX", help="folder made by partial-fc index build")
    text = "embeddings to compare and to search for, at most a thousand (default: 200)"
    parser.add_argument("--queries", type=whole_number(1), default=200, metavar="N", help=text)
    add_seed(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    import numpy as np

    from partial_fc.utils.progress import progress

    from .folder import IndexFolder

    index = IndexFolder(args.index)
    index.verify()
    lists = index.lists
    if len(lists) < 2:
        raise ValueError(f"{args.index} has {len(lists)} entries: no entry has a nearest other one")
    if index.manifest.version == 1:
        unknown = "its embeddings have no checksums, and nothing is known of what was added"
        say(f"{args.index} is of an earlier version: {unknown}; build it again", sys.stderr)
    elif not index.keeps_added:
        what = "the embeddings that it kept as they were added have been removed: its entries are compared"
        say(f"{args.index}: {what}", sys.stderr)
    sample = np.random.default_rng(args.seed).choice(index.added, min(args.queries, len(index.added)), replace=False)
    numbers, queries = sample["number"], sample["embedding"]
    found, same = 0, np.einsum("ne,ne->n", lists.rows(numbers), queries)
    with progress(len(sample), "query", "searching") as bar:
        for number, query in zip(numbers, queries):
            approximate, exact = (_nearest_other(lists, number, query, exact) for exact in (False, True))
            found += approximate >= exact - ROUNDING
            bar.update(1)
    say(f"{args.index}: recall of rank 1 is {found / len(sample):.4f} ({found} of {len(sample)} entries)")
    worst = same.argmin()
    say(f"{args.index}: cosine of an entry to what was added is {same[worst]:.4f} or more")
    if not same[worst] >= SAME:
        say(f"{index.names[numbers[worst]]} is another embedding than was added: build the index again")
        return 1
    return 0


def _nearest_other(lists: "Lists", number: int, query: "np.ndarray", exact: bool) -> float:
    """Returns the cosine of the nearest entry besides the query's own, -inf if none is found."""
    numbers, cosines = lists.nearest(query, 2, exact)
    return max(cosines[numbers != number].tolist(), default=float("-inf"))
