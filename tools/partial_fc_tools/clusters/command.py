"""Clusters embeddings by spherical k-means: each cluster is a class, for a training on items without labels.

Writes the numbers 0 .. K - 1 of the P nearest clusters of each embedding, nearest first: (N,) int64 for P = 1, (N, P)
for more. A training on the same items, in the same order, takes them as labels=, with num_classes=K. Memory holds two
copies of the centers and a batch of the embeddings. On one machine, the same seed gives the same file. Needs faiss:
pip install faiss-cpu.

Shapes: N embeddings, K clusters, P nearest clusters.
"""

import argparse
import os

from partial_fc.utils.cli import add_force, add_seed, whole_number
from partial_fc.utils.text import plural, say

EXAMPLE = """embeddings --classes 100000 --out labels.npy
embeddings --classes 2000000 --labels 10 --out labels.npy"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("embeddings", metavar="EMBEDDINGS", help="embeddings made by partial-fc embed")
    parser.add_argument("--classes", type=whole_number(1), required=True, metavar="K", help="number of clusters")
    text = "nearest clusters per embedding (default: 1)"
    parser.add_argument("--labels", type=whole_number(1), default=1, metavar="P", help=text)
    parser.add_argument("--out", required=True, metavar="FILE", help="file to write the cluster numbers to, .npy")
    text = "iterations of k-means, each over at most 256 embeddings per cluster (default: 20)"
    parser.add_argument("--iterations", type=whole_number(0), default=20, metavar="N", help=text)
    add_seed(parser)
    add_force(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    import numpy as np

    from partial_fc.utils.progress import progress
    from partial_fc.utils.staging import staged_files
    from partial_fc_tools.index.ivf import load_faiss
    from partial_fc_tools.inference.index import read_embeddings

    from .kmeans import assigned, find_centers, sampled

    load_faiss()
    embeddings, clusters = read_embeddings(args.embeddings), args.classes
    if clusters > len(embeddings):
        raise ValueError(f"--classes is {clusters:,}, but {args.embeddings} has {plural(len(embeddings), 'embedding')}")
    if args.labels > clusters:
        raise ValueError(f"--labels is {args.labels}, which exceeds the number of --classes, {clusters:,}")
    shape = (len(embeddings), args.labels)[: 1 if args.labels == 1 else 2]
    header = {"descr": np.lib.format.dtype_to_descr(np.dtype(np.int64)), "fortran_order": False, "shape": shape}
    counts, cosines = np.zeros(clusters, np.int64), 0.0
    folder, name = os.path.split(args.out)
    with staged_files(folder, [name], args.force) as stage, open(os.path.join(stage, name), "xb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        steps = args.iterations * sampled(len(embeddings), clusters) + len(embeddings)
        with progress(steps, "embedding", "clustering") as bar:
            centers = find_centers(embeddings, clusters, args.iterations, args.seed, bar.update)
            for numbers, nearness in assigned(embeddings, centers, args.labels):
                file.write(numbers.tobytes())
                counts += np.bincount(numbers[:, 0], minlength=clusters)
                cosines += float(nearness[:, 0].sum(dtype=np.float64))
                bar.update(len(numbers))
    say(
        f"{args.out}: {plural(args.labels, 'label')} for each of {plural(len(embeddings), 'embedding')}; "
        f"{plural(clusters, 'cluster')} of {counts.min():,} to {counts.max():,} embeddings (median "
        f"{np.median(counts):,.0f}), mean cosine to the nearest center {cosines / len(embeddings):.3f}"
    )
    if empty := int((counts == 0).sum()):
        say(f"{plural(empty, 'cluster')} without embeddings: fewer --classes, or more --iterations, avoid them")
    return 0
