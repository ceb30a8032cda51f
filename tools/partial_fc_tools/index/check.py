"""Reads a whole index, and compares it with the sample of the added embeddings that the index keeps.

Refuses a damaged index. Measures the lowest cosine between an entry and the embedding that was added, and the recall:
how often approximate search finds the nearest other entry, as exact search does. Equally near entries, such as copies
of an image, count as the same. The exit code is 1 if an entry differs from the embedding that was added.
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
SAME = 0.98  # least cosine of an entry to what was added; each quantization to int8 costs at most 0.005
EXAMPLE = "faces.index --queries 1000"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("index", metavar="INDEX", help="folder made by partial-fc index build")
    text = "number of embeddings to compare and to search for, at most 1000 (default: 200)"
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
        raise ValueError(f"{args.index} needs at least two entries to search for the nearest other one")
    if index.manifest.version == 1:
        unknown = "it has no checksums of its embeddings and no record of what was added"
        say(f"{args.index} was made by an earlier version: {unknown}; build it again", sys.stderr)
    elif not index.keeps_added:
        reason = "the entries whose uncompressed embeddings were kept have all been removed"
        say(f"{args.index}: {reason}; the check searches with compressed embeddings instead", sys.stderr)
    sample = np.random.default_rng(args.seed).choice(index.added, min(args.queries, len(index.added)), replace=False)
    ids, queries = sample["number"], sample["embedding"]
    cosines = np.einsum("ne,ne->n", lists.rows(ids), queries)
    hits = 0
    with progress(len(sample), "query", "searching") as bar:
        for entry_id, query in zip(ids, queries):
            approximate, best = (_nearest_other(lists, entry_id, query, exact) for exact in (False, True))
            hits += approximate >= best - ROUNDING
            bar.update(1)
    say(f"{args.index}: recall of rank 1 is {hits / len(sample):.4f} ({hits} of {len(sample)} entries)")
    worst = cosines.argmin()
    say(f"{args.index}: cosine between an entry and the embedding that was added is {cosines[worst]:.4f} or more")
    if not cosines[worst] >= SAME:
        say(f"{index.names[ids[worst]]} differs from the embedding that was added: build the index again")
        return 1
    return 0


def _nearest_other(lists: "Lists", entry_id: int, query: "np.ndarray", exact: bool) -> float:
    """Returns the cosine of the nearest entry other than the query's own, or -inf if the search finds none."""
    ids, cosines = lists.nearest(query, 2, exact)
    return max(cosines[ids != entry_id].tolist(), default=float("-inf"))
