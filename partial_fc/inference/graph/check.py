"""Measures how often an index finds what exact search finds: the entry nearest to one of its entries, for a sample."""

import argparse

from partial_fc.utils.cli import add_seed, whole_number

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
    graph = index.graph(mapped=True)
    entries = np.flatnonzero(graph.present(len(index.names)))
    if len(entries) < 2:
        raise ValueError(f"{args.index} has {len(entries)} entries: no entry has a nearest other one")
    sample = np.random.default_rng(args.seed).choice(entries, min(args.queries, len(entries)), replace=False)
    found = 0
    with progress(len(sample), "query", "searching") as bar:
        for number, query in zip(sample, graph.rows(sample)):
            approximate, exact = (
                [each for each in graph.nearest(query, 2, exact)[0] if each != number][:1] for exact in (False, True)
            )
            found += approximate == exact
            bar.update(1)
    print(f"{args.index}: recall of rank 1 is {found / len(sample):.4f} ({found} of {len(sample)} entries)")
    return 0
