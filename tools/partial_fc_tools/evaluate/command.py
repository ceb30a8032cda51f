"""Measures embeddings with labels: searches, pairs, nearest neighbors and clusters, with 95 % confidence intervals.

EMBEDDINGS was made by partial-fc embed. LABELS is a .npy file of integers, one per embedding, -1 for an item to leave
out; without it, the class of an item is the folder of its name. By default, each item is searched in all others, and
all pairs are compared. The intervals are from draws of the classes with replacement. METRICS are names, or your own
classes as package.module:name.

--thresholds-from chooses the thresholds of the pair metrics on another set, and prints their error rates on this one.
With min_dcf, it also prints the detection cost of scores that were calibrated on the other set.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from partial_fc.utils.cli import add_json, whole_number
from partial_fc.utils.text import say, say_json

if TYPE_CHECKING:
    import numpy as np

    from partial_fc.evaluation.items import EmbeddedItems

EXAMPLE = """embeddings
embeddings labels.npy --metrics recall,map --options 'ranks=(1,10)'
embeddings labels.npy --metrics cmc,map --queries is_query.npy --cameras cameras.npy
embeddings labels.npy --metrics eer,min_dcf --cohort cohort --thresholds-from dev dev_labels.npy"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    from partial_fc.evaluation.metrics import METRICS

    parser.add_argument("embeddings", metavar="EMBEDDINGS", help="embeddings made by partial-fc embed")
    parser.add_argument("labels", metavar="LABELS", nargs="?", help="class of each embedding (N,), .npy")
    text = f"metrics, of {', '.join(METRICS)} (default: recall,map)"
    parser.add_argument("--metrics", default="recall,map", help=text)
    text = "options of the metrics, such as ranks=(1,10),fars=1e-4,p_target=0.05; see docs/evaluate.md"
    parser.add_argument("--options", default="", metavar="NAME=VALUE,...", help=text)
    text = "which embeddings are queries, (N,) of 0 or 1, .npy; the others are the gallery"
    parser.add_argument("--queries", metavar="FILE", help=text)
    text = "camera of each embedding (N,), .npy: a query ignores items of its class from its camera"
    parser.add_argument("--cameras", metavar="FILE", help=text)
    text = "pairs to compare, as numbers of embeddings from 0, (P, 2), .npy"
    parser.add_argument("--pairs", metavar="FILE", help=text)
    text = "normalize scores with these embeddings of other classes (AS-norm)"
    parser.add_argument("--cohort", metavar="EMBEDDINGS", help=text)
    text = "nearest embeddings of the cohort to normalize by (default: 300)"
    parser.add_argument("--cohort-top", type=whole_number(2), default=300, metavar="N", help=text)
    text = "set of other classes to choose thresholds on"
    parser.add_argument("--thresholds-from", nargs=2, metavar=("EMBEDDINGS", "LABELS"), help=text)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    from partial_fc.evaluation.metrics import Metric, build_metrics, evaluate
    from partial_fc.evaluation.metrics.metric import PairMetric
    from partial_fc.evaluation.metrics.transferred import Transferred
    from partial_fc.utils.config import parse_options
    from partial_fc.utils.tables import format_table

    names = [name.strip() for name in args.metrics.split(",")]
    metrics: list[Metric] = build_metrics(names, parse_options("--options", args.options))
    paths = {"is_query": args.queries, "cameras": args.cameras, "pairs": args.pairs}
    columns = {name: read_integers(path) for name, path in paths.items() if path is not None}
    items = _read_items(args, args.embeddings, args.labels, **columns)
    if args.thresholds_from:
        of_pairs = [metric for metric in metrics if isinstance(metric, PairMetric)]
        if not of_pairs:
            raise ValueError("--thresholds-from needs a metric of pairs: add eer, min_dcf or tar to --metrics")
        try:
            metrics.append(Transferred(_read_items(args, *args.thresholds_from), of_pairs))
        except ValueError as error:
            raise ValueError(f"--thresholds-from: {error}") from None
    figures = evaluate(items, metrics)
    if args.json:
        say_json({name: figure._asdict() for name, figure in figures.items()})
        return 0
    rows = [[name, *(f"{number:.5f}" for number in figure)] for name, figure in figures.items()]
    print("\n".join(format_table([["figure", "value", "low", "high"], *rows])))
    sizes = f"{len(items.queries):,} queries, {len(items.gallery):,} in the gallery, {items.num_classes:,} classes"
    say(f"{args.embeddings}: {sizes}")
    return 0


def read_integers(path: str) -> np.ndarray:
    """Reads a .npy file of integers or truth values. Raises OSError, or ValueError that names the file."""
    import numpy as np

    from partial_fc.checkpoint.arrays import open_array

    array = open_array(path)
    if array.dtype.kind not in "iub":
        raise ValueError(f"{path} holds {array.dtype}, expected integers")
    return np.asarray(array)


def folder_labels(path: str) -> np.ndarray:
    """Returns (N,) int64, the number of each name's folder. Raises OSError, or ValueError for a name without one."""
    import numpy as np

    from partial_fc_tools.inference.index import index_paths, read_names

    text = index_paths(path)[1]
    folders = [name.rpartition("/")[0] for name in read_names(text)]
    if "" in folders:
        raise ValueError(f"{text}, line {folders.index('') + 1}: the name has no folder: give LABELS")
    return np.unique(folders, return_inverse=True)[1].astype(np.int64)


def _read_items(args: argparse.Namespace, path: str, labels: str | None, **columns: np.ndarray) -> EmbeddedItems:
    from partial_fc.evaluation.items import EmbeddedItems
    from partial_fc.evaluation.score_norm import CohortStatistics
    from partial_fc_tools.inference.index import read_embeddings

    embeddings = read_embeddings(path)
    classes = folder_labels(path) if labels is None else read_integers(labels)
    cohort = None
    if args.cohort is not None:
        cohort = CohortStatistics.measure(embeddings, read_embeddings(args.cohort), args.cohort_top)
    return EmbeddedItems(embeddings, classes, cohort=cohort, **columns)
