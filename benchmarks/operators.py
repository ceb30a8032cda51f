"""Cost of the alternative operators of the classification layer on a CPU.

. setup-utils/env.sh
OMP_NUM_THREADS=1 python benchmarks/operators.py        # 40 seconds and 1.3 GB of memory

Milliseconds for all classes in one call, and for the same classes tile by tile; * marks the choice of the layer. The
small cost of combining the results of the tiles (dX, row maxima, row sums) is not included. On a GPU the layer calls
MXNet's operators instead of NumPy.

Shapes: G global batch, L classes of this rank, E embedding, T classes of a tile. Numbers are float32.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import timeit
from functools import cached_property
from pathlib import Path

import mxnet as mx
import numpy as np
from mxnet import nd

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "mxnet")]

from benchmarks.host import cpu_name  # noqa: E402
from partial_fc.layer.sgd import SGDParams, sgd_momentum  # noqa: E402
from partial_fc_mxnet.ops.host_memory import host_array, memory_of  # noqa: E402

ROUNDS = 5
# sgd_momentum multiplies the gradient by learning_rate * rescale_grad in place; 1 leaves it the same for every call.
SGD = {"momentum": 0.9, "wd": 5e-4, "rescale_grad": 1.0}


class Tile:
    """The operands of the calls: capitalized names are NDArrays, lower-case names the same memory for NumPy.

    X (G, E) features, DX their gradient; Bank (2L, E) centers, W (T, E) those of the tile, M (T, E) their momentum,
    Index (T,) sampled rows of Bank; Rows (G, 1) and OnesE (1, E) factors; the others as in ``buffer_shapes``.
    """

    def __init__(self, **arrays: nd.NDArray):
        for name, array in arrays.items():
            setattr(self, name, array)
            setattr(self, name.lower(), memory_of(array))

    @cached_property
    def recorded(self) -> nd.NDArray:
        """Logits whose backward pass writes to DX and DW; the warm-up call computes them."""
        x, w = self.X.detach(), self.W.detach()
        mx.autograd.mark_variables([x, w], [self.DX, self.DW])
        with mx.autograd.record():
            return product(x, w)


def buffer_shapes(batch: int, size: int, embedding: int) -> dict[str, tuple[int, int]]:
    """Shapes of logits D and their transpose, results Z and C, gradients DW of the centers, factors of columns."""
    logits, centers = {"D": (batch, size), "Z": (batch, size)}, {"C": (size, embedding), "DW": (size, embedding)}
    transposed = {"DT": (size, batch), "ZT": (size, batch), "CT": (embedding, size)}
    return {**logits, **centers, **transposed, "Columns": (1, size), "Ones": (1, size)}


def divide(batch: int, classes: int, embedding: int, size: int) -> list[Tile]:
    """All classes in tiles of ``size``, which share their buffers."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> nd.NDArray:
        return host_array(rng.standard_normal(shape, np.float32))

    common = {"X": normal(batch, embedding), "DX": normal(batch, embedding), "Rows": normal(batch, 1)}
    common.update(Bank=normal(2 * classes, embedding), OnesE=nd.ones((1, embedding)))
    mom, index = normal(classes, embedding), host_array(np.sort(rng.choice(2 * classes, classes, replace=False)))
    buffers = {name: normal(math.prod(shape)) for name, shape in buffer_shapes(batch, size, embedding).items()}
    buffers["Ones"][:] = 1
    tiles = []
    for start in range(0, classes, size):
        rows = slice(start, min(start + size, classes))
        shapes = buffer_shapes(batch, rows.stop - start, embedding)
        views = {name: buffers[name][: math.prod(shape)].reshape(shape) for name, shape in shapes.items()}
        tiles.append(Tile(**common, **views, W=common["Bank"][rows], M=mom[rows], Index=index[rows]))
    return tiles


def product(a: nd.NDArray, b: nd.NDArray, out: nd.NDArray | None = None) -> nd.NDArray:
    """a b^T."""
    return nd.FullyConnected(a, b, num_hidden=len(b), no_bias=True, out=out)


def backward(t: Tile):
    t.recorded.backward(t.D, retain_graph=True)
    return t.DX, t.DW


def transposed_products(t: Tile):
    dt, wt, xt = nd.transpose(t.D, out=t.DT), nd.transpose(t.W, out=t.CT), nd.transpose(t.X)
    return product(t.D, wt, t.DX), product(dt, xt, t.DW)


def global_pooling(t: Tile) -> nd.NDArray:
    return nd.Pooling(t.D.reshape((1, *t.D.shape)), kernel=(1,), global_pool=True, pool_type="max")


def numpy_softmax(t: Tile) -> np.ndarray:
    np.subtract(t.d, t.d.max(axis=1, keepdims=True), out=t.z)
    np.exp(t.z, out=t.z)
    t.z /= t.z.sum(axis=1, keepdims=True)
    return t.z


def numpy_sgd(t: Tile) -> np.ndarray:
    sgd_momentum(t.w, t.dw, t.m, SGDParams(learning_rate=1.0, **SGD))
    return t.w


def put(array, index, values):
    array[index] = values
    return array


# (group, name, call, why the layer uses it, or ""). The calls of a group return the same values, except for log_softmax
# and L2Normalization, which returns unit rows instead of norms.
OPERATORS = (
    ("X W^T", "FullyConnected", lambda t: product(t.X, t.W, t.Z), "oneDNN"),
    ("X W^T", "dot", lambda t: nd.dot(t.X, t.W, transpose_b=True, out=t.Z), ""),
    ("X W^T", "numpy matmul", lambda t: np.matmul(t.x, t.w.T, out=t.z), ""),
    ("dX and dW", "FullyConnected's backward", backward, "oneDNN, no transposing"),
    ("dX and dW", "FullyConnected, transposed", transposed_products, ""),
    ("dX and dW", "dot", lambda t: (nd.dot(t.D, t.W, out=t.DX), nd.dot(t.D, t.X, transpose_a=True, out=t.DW)), ""),
    ("dX and dW", "numpy matmul", lambda t: (np.matmul(t.d, t.w, out=t.dx), np.matmul(t.d.T, t.x, out=t.dw)), ""),
    ("exp", "exp", lambda t: nd.exp(t.D, out=t.Z), ""),
    ("exp", "numpy exp", lambda t: np.exp(t.d, out=t.z), "vectorised"),
    ("row maximum", "max", lambda t: nd.max(t.D, axis=1), ""),
    ("row maximum", "Pooling", global_pooling, ""),
    ("row maximum", "numpy max", lambda t: t.d.max(axis=1), "vectorised"),
    ("row sum", "sum", lambda t: nd.sum(t.D, axis=1), ""),
    ("row sum", "FullyConnected, ones", lambda t: product(t.D, t.Ones), ""),
    ("row sum", "numpy sum", lambda t: t.d.sum(axis=1), "vectorised"),
    ("softmax", "softmax", lambda t: nd.softmax(t.D, out=t.Z), ""),
    ("softmax", "log_softmax", lambda t: nd.log_softmax(t.D, out=t.Z), ""),
    ("softmax", "softmax (L, G), axis 0", lambda t: nd.softmax(t.DT, axis=0, out=t.ZT), ""),
    ("softmax", "numpy, five passes", numpy_softmax, "max and sum are needed"),
    ("columns scaled", "broadcast_mul", lambda t: nd.broadcast_mul(t.D, t.Columns, out=t.Z), ""),
    ("columns scaled", "numpy multiply", lambda t: np.multiply(t.d, t.columns, out=t.z), "vectorised"),
    ("rows scaled", "broadcast_mul", lambda t: nd.broadcast_mul(t.D, t.Rows, out=t.Z), ""),
    ("rows scaled", "numpy multiply", lambda t: np.multiply(t.d, t.rows, out=t.z), "vectorised"),
    ("norms of W", "norm", lambda t: nd.norm(t.W, axis=1), ""),
    ("norms of W", "L2Normalization", lambda t: nd.L2Normalization(t.W, out=t.C), ""),
    ("norms of W", "sum of square", lambda t: nd.sqrt(nd.sum(nd.square(t.W, out=t.C), axis=1)), ""),
    ("norms of W", "FullyConnected, ones", lambda t: nd.sqrt(product(nd.square(t.W, out=t.C), t.OnesE)), ""),
    ("norms of W", "numpy einsum", lambda t: np.sqrt(np.einsum("te,te->t", t.w, t.w)), "one pass"),
    ("SGD", "sgd_mom_update", lambda t: nd.sgd_mom_update(t.W, t.DW, t.M, out=t.W, lr=1.0, **SGD), ""),
    ("SGD", "numpy, block by block", numpy_sgd, "can project too"),
    ("rows taken", "take", lambda t: nd.take(t.Bank, t.Index, out=t.C), ""),
    ("rows taken", "numpy take", lambda t: np.take(t.bank, t.index, axis=0, out=t.c, mode="clip"), "one pass"),
    ("rows put back", "assignment", lambda t: put(t.Bank, t.Index, t.C), ""),
    ("rows put back", "index_copy in place", lambda t: nd.contrib.index_copy(t.Bank, t.Index, t.C, out=t.Bank), ""),
    ("rows put back", "numpy assignment", lambda t: put(t.bank, t.index, t.c), "one pass"),
    ("W transposed", "transpose", lambda t: nd.transpose(t.W, out=t.CT), ""),
    ("W transposed", "numpy", lambda t: put(t.ct, ..., t.w.T), ""),
)


def best_ms(call, tiles: list[Tile]) -> float:
    """Milliseconds of the fastest of several runs over the tiles, after a warm-up run."""

    def run() -> None:
        for tile in tiles:
            call(tile)
        nd.waitall()

    run()
    return 1000 * min(timeit.repeat(run, number=1, repeat=ROUNDS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"batch": 128, "classes": 50_000, "embedding": 512, "tile": 2048}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    shape = (args.batch, args.classes, args.embedding)
    cpu, threads = cpu_name(), os.environ.get("OMP_NUM_THREADS", "every core")
    print(f"{cpu}, threads: {threads}; G, L, E = {shape}; ms, best of {ROUNDS}")
    print(f"{'':45}{'whole':>8}{f'T={args.tile}':>8}", flush=True)
    divided, rows = [divide(*shape, args.classes), divide(*shape, args.tile)], []
    for group, name, call, reason in OPERATORS:
        undivided, tiled = (best_ms(call, tiles) for tiles in divided)
        rows.append({"group": group, "name": name, "whole_ms": undivided, "tiled_ms": tiled, "chosen": bool(reason)})
        print(f"{group:15}{'*' if reason else ' '} {name:28}{undivided:8.2f}{tiled:8.2f}  {reason}", flush=True)
    if rows[1]["whole_ms"] > 2 * rows[0]["whole_ms"]:
        print("dot takes more than twice as long as FullyConnected: OpenBLAS (also NumPy's) may not know this CPU;")
        print("try OPENBLAS_CORETYPE=SkylakeX on a CPU with AVX-512, otherwise OPENBLAS_CORETYPE=Haswell")
    if args.json:
        args.json.write_text(json.dumps({"cpu": cpu, "threads": threads, "shape": shape, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
