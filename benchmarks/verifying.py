"""Measures the cost of a verification during training: time, memory of a rank, and bytes sent between ranks.

. setup-utils/env.sh
python benchmarks/verifying.py
mpirun -q -np 2 python benchmarks/verifying.py --pairs 6000 --network small

The pairs of the demo data set are repeated. For comparison it prints the memory of the textbook implementation, which
holds every image and every mirror image of the set as float32 on each rank.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import sys
import tempfile
import time
from itertools import cycle, islice
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import default  # noqa: E402
from partial_fc.data.pairs_bin import read_pairs, write_pairs  # noqa: E402
from partial_fc.data.synthetic import VALIDATION, ensure_demo  # noqa: E402
from partial_fc.distributed.env import share_cores  # noqa: E402
from partial_fc.training.building import build_training  # noqa: E402

ROUNDS = 3


def write_set(path: str, pairs: int) -> None:
    """Writes a set of ``pairs`` pairs, repeated from the demo data set."""
    images, issame = read_pairs(ensure_demo(ROOT / "data" / "demo") / VALIDATION)
    write_pairs(path, list(islice(cycle(images), 2 * pairs)), list(islice(cycle(issame), pairs)))


def build_module(settings):
    """Returns the bound module, as in training."""
    from partial_fc_mxnet.build import MXNetFramework

    framework = MXNetFramework()
    return build_training(settings, framework, framework.build_dummies(settings), settings.models_root).engine


def peak() -> int:
    """Returns the peak memory of this process in bytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=6000)
    parser.add_argument("--network", default="small")
    args = parser.parse_args()
    settings = default.generate_config(dataset_name="demo", network_name=args.network)
    os.environ.setdefault("MXNET_SUBGRAPH_VERBOSE", "0")
    threads = share_cores(os.environ)
    import horovod.mxnet as hvd

    from partial_fc.evaluation.verification import verify_distances
    from partial_fc_mxnet import Embedder, collectives

    hvd.init()
    with tempfile.TemporaryDirectory() as folder:
        path = collectives.broadcast("path", f"{folder}/pairs.bin")
        if hvd.rank() == 0:
            write_set(path, args.pairs)
        collectives.barrier("written")
        embedder = Embedder(build_module(settings), settings.batch_size, settings.image_size)
        before, embedding, metrics = peak(), [], []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            figures = embedder("pairs", path)
            between = time.perf_counter()
            verify_distances(figures.distance, figures.issame)
            embedding.append(between - start)
            metrics.append(time.perf_counter() - between)
    if hvd.rank() == 0:
        textbook = 2 * 2 * args.pairs * 3 * settings.image_size**2 * 4
        print(
            f"{args.pairs} pairs, {args.network}, {hvd.size()} x {threads} threads: embedding "
            f"{statistics.median(embedding):.2f} s, metrics {1000 * statistics.median(metrics):.1f} ms; rank 0 grew "
            f"by {(peak() - before) / 1e6:.0f} MB (textbook: {textbook / 1e6:.0f} MB); each rank sends "
            f"{16 * args.pairs / hvd.size() / 1e3:.0f} kB"
        )


if __name__ == "__main__":
    main()
