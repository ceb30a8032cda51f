"""Size and speed of every backbone as an ONNX file, and how far its embeddings are from MXNet's.

    python benchmarks/backbones.py [--networks r18 r50 ...] [--threads 2]

Random weights: neither size nor time depends on them. E = 512, 112 x 112 pixels, one image at a time, onnxruntime on
the CPU: the median of the runs that fit into some seconds. Published sizes are those of the original's pages.
"""

import argparse
import os
import statistics
import time

os.environ.setdefault("MXNET_SUBGRAPH_VERBOSE", "0")
import mxnet as mx
import numpy as np

from partial_fc.data.synthetic import draw_face
from partial_fc.inference.model import FaceModel
from partial_fc.inference.parity import cosine_distances, random_faces
from partial_fc_mxnet.onnx_export import OnnxExport
from partial_fc_mxnet.symbol import NETWORKS, get_symbol

SIDE, E, FACES, SECONDS = 112, 512, 4, 3.0
PUBLISHED = {"r50": "166", "r100": "248", "r200": "476 (of 10^6)"}  # MB


def initialized(symbol):
    """(arg_params, aux_params) as a training starts with."""
    module = mx.mod.Module(symbol, label_names=None)
    module.bind([("data", (1, 3, SIDE, SIDE))], for_training=False)
    module.init_params(mx.init.Xavier(rnd_type="gaussian", factor_type="out", magnitude=2))
    return module.get_params()


def milliseconds(model, faces):
    """Median time of an image."""
    model.embed(faces[:1])
    times, end = [], time.perf_counter() + SECONDS
    while time.perf_counter() < end or len(times) < 5:
        start = time.perf_counter()
        model.embed(faces[:1])
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times)


def measure(network, threads):
    """One row of the table."""
    symbol = get_symbol(network, E)
    arg_params, aux_params = initialized(symbol)
    faces = np.stack([draw_face(0, person, 0) for person in range(FACES)])
    export = OnnxExport(symbol, SIDE, mx.cpu(), faces)
    start = time.perf_counter()
    content = export(arg_params, aux_params, num_update=0)
    seconds = time.perf_counter() - start
    model = FaceModel(content, network, threads)
    every = np.concatenate([random_faces((SIDE, SIDE)), faces])
    distance = cosine_distances(model.embed(every), export._embed(arg_params, aux_params, every)).max()
    return len(content), milliseconds(model, faces), distance, seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    print(
        f"| network | MB (2^20) | MB (10^6) | published | ms/image, {args.threads} threads | distance | export, check |"
    )
    print("| --- " * 7 + "|")
    for network in args.networks:
        size, ms, distance, seconds = measure(network, args.threads)
        published = PUBLISHED.get(network, "")
        sizes = f"{size / 2**20:.1f} | {size / 1e6:.1f} | {published}"
        print(f"| {network} | {sizes} | {ms:.1f} | {distance:.1g} | {seconds:.1f} s |", flush=True)


if __name__ == "__main__":
    main()
