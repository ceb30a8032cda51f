"""Compares exact and approximate search: recall at rank 1, queries/s, build time, memory, file size, opening.

python benchmarks/index.py --rows 1000000      # pip install faiss-cpu usearch; --candidates selects some of them

Draws embeddings of 512 numbers like those of a trained network. The numbers of a person's center have variances that
fall as exp(-i / 64), so the cosines of different persons have a deviation of 0.09, as in about 128 dimensions. An image
is the center plus noise of the same kind, so two images of a person have a cosine of 0.6 on average. The index has five
images per person. Half of the 1,000 queries are other images of persons in the index, half are other persons.

Recall is the fraction of queries whose result is that of exact search, or, by person, a row of the same person.
Each candidate is built in one process and opened in another, with one thread each. Seconds are processor seconds,
because other programs may run, and exclude drawing; a build includes writing the file. Memory is the peak of a build
without mapped files, and the increase by opening the index with them. Effort is the lists of IVF and efSearch of HNSW.
"""

import argparse
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import numpy as np  # noqa: E402

from partial_fc_tools.index import ivf  # noqa: E402
from partial_fc_tools.index.writer import Writer  # noqa: E402

E, IMAGES, COSINE, BLOCK, QUERIES = 512, 5, 0.6, 20_000, 1000
SCALE = np.exp(-np.arange(E) / 128).astype(np.float32)  # standard deviations of a center's numbers
CENTERS, FACES, QUERY, OTHERS = range(4)  # random streams
EFFORTS = (32, 64, 128, 256, 512)
CONNECTIVITY, ADD_EFFORT = 16, 64  # of HNSW: neighbors per entry, and entries that are tried for a new one
MB = 1 << 20


def drawn(count: int, *seed: int) -> np.ndarray:
    # Bytes take a tenth of the time of normal numbers, and the cosines of 512 of them are just as normal.
    numbers = np.frombuffer(np.random.default_rng(seed).bytes(count * E), np.int8).reshape(count, E)
    return numbers * SCALE


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.sqrt(np.einsum("ne,ne->n", rows, rows))[:, None]


def images_of(centers: np.ndarray, *seed: int) -> np.ndarray:
    return unit(centers + np.float32((1 / COSINE - 1) ** 0.5) * drawn(len(centers), *seed))


class Drawn:
    """The embeddings of an index, (rows, E), drawn on demand; ``seconds`` is the time for drawing."""

    def __init__(self, rows: int):
        self.rows, self.seconds = rows, 0.0

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, part: slice | np.ndarray) -> np.ndarray:
        """Returns the embeddings of a block or its beginning (a slice), or some by number in ascending order."""
        start = time.process_time()
        if isinstance(part, slice):
            assert part.start % BLOCK == 0 and part.stop - part.start <= BLOCK
            found = self._block(part.start)[: part.stop - part.start]
        else:
            firsts = part // BLOCK * BLOCK
            found = np.concatenate([self._block(first)[part[firsts == first] - first] for first in np.unique(firsts)])
        self.seconds += time.process_time() - start
        return found

    def blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yields (first row, embeddings)."""
        for first in range(0, self.rows, BLOCK):
            yield first, self[first : min(first + BLOCK, self.rows)]

    def _block(self, first: int) -> np.ndarray:
        return images_of(np.repeat(drawn(BLOCK // IMAGES, CENTERS, first), IMAGES, axis=0), FACES, first)


def queries(rows: int) -> np.ndarray:
    """Returns (QUERIES, E): persons from all parts of the index, then other persons."""
    persons = np.linspace(0, rows // IMAGES - 1, QUERIES // 2).astype(int)
    part, inside = np.divmod(persons, BLOCK // IMAGES)
    centers = [drawn(BLOCK // IMAGES, CENTERS, first * BLOCK)[inside[part == first]] for first in np.unique(part)]
    return np.concatenate([images_of(np.concatenate(centers), QUERY), unit(drawn(QUERIES // 2, OTHERS))])


def exact(rows: int) -> dict[str, Any]:
    """Returns the row with the highest cosine for each query, and the seconds per query without drawing."""
    asked = queries(rows)
    best, found, seconds = np.full(QUERIES, -2, np.float32), np.zeros(QUERIES, int), 0.0
    for first, x in Drawn(rows).blocks():
        start = time.process_time()
        for query in asked[:4]:  # one at a time, like partial-fc search
            (-(x @ query)).argsort(kind="stable")[:1]
        seconds += (time.process_time() - start) / 4
        scores = asked @ x.T
        column = scores.argmax(axis=1)
        score = scores[np.arange(QUERIES), column]
        found = np.where(score > best, first + column, found)
        best = np.maximum(score, best)
    return {"truth": found, "seconds": seconds}


class Candidate(NamedTuple):
    """A kind of index, with build(rows, path), open(path, mapped), and ask(index, queries, effort) -> rows."""

    build: Callable[[Drawn, str], object]
    open: Callable[[str], Any]
    ask: Callable[[Any, np.ndarray, int], np.ndarray]


def ours(dtype: str) -> Candidate:
    """The lists of partial-fc index."""

    def build(rows: Drawn, path: str) -> None:
        lists = Writer(os.path.dirname(path), E, dtype)
        lists.add(0, rows.__getitem__, len(rows))
        np.save(f"{path}.npy", lists.save(path))

    def ask(lists: ivf.Lists, x: np.ndarray, effort: int) -> np.ndarray:
        ivf.EFFORT = effort
        return np.array([lists.nearest(query, 1)[0][0] for query in x])

    return Candidate(build, lambda path: ivf.Lists(path, E, dtype, np.load(f"{path}.npy")), ask)


def usearch(dtype: str) -> Candidate:
    """HNSW by usearch. For int8 each embedding is scaled by its largest number, which improves usearch's recall."""
    from usearch.index import Index

    def stored(x: np.ndarray) -> np.ndarray:
        return x if dtype == "f32" else np.rint(x * (127 / np.abs(x).max(axis=1, keepdims=True))).astype(np.int8)

    def build(rows: Drawn, path: str) -> None:
        index = Index(ndim=E, metric="cos", dtype=dtype, connectivity=CONNECTIVITY, expansion_add=ADD_EFFORT)
        for first, x in rows.blocks():
            index.add(np.arange(first, first + len(x)), stored(x), threads=1)  # several threads lose entries (2.26.5)
        index.save(path)

    def ask(index: Index, x: np.ndarray, effort: int) -> np.ndarray:
        index.expansion_search = effort
        return index.search(stored(x), 1, threads=1).keys.astype(int).ravel()

    return Candidate(build, lambda path: Index.restore(path, view=True), ask)


def faiss(name: str) -> Candidate:
    """HNSW by faiss."""
    import faiss

    def build(rows: Drawn, path: str) -> None:
        index = faiss.index_factory(E, name, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = ADD_EFFORT
        index.train(rows[0:BLOCK])
        for _, x in rows.blocks():
            index.add(x)
        faiss.write_index(index, path)

    def ask(index: Any, x: np.ndarray, effort: int) -> np.ndarray:
        faiss.ParameterSpace().set_index_parameter(index, "efSearch", effort)
        return index.search(x, 1)[1].ravel()

    mapped = getattr(faiss, "IO_FLAG_MMAP_IFC", 0)  # in releases after 1.8
    return Candidate(build, lambda path: faiss.read_index(path, mapped), ask)


CANDIDATES: dict[str, Callable[[], Candidate]] = {
    "IVF int8": lambda: ours("int8"),
    "IVF float32": lambda: ours("float32"),
    "usearch HNSW int8": lambda: usearch("i8"),
    "usearch HNSW float32": lambda: usearch("f32"),
    "faiss HNSW int8": lambda: faiss("HNSW16_SQ8"),
    "faiss HNSW float32": lambda: faiss("HNSW16"),
}


def memory(of: str = "VmRSS") -> float:
    """Returns the memory of this process in MB, with mapped files, or without (RssAnon)."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(of))
    return int(line.split()[1]) / 1024


@contextmanager
def peak_memory() -> Iterator[list[float]]:
    """Yields the memory of this process in MB without mapped files, ten times per second."""
    measured, ended = [memory("RssAnon")], threading.Event()

    def measure() -> None:
        while not ended.wait(0.1):
            measured.append(memory("RssAnon"))

    thread = threading.Thread(target=measure)
    thread.start()
    try:
        yield measured
    finally:
        ended.set()
        thread.join()


def build(name: str, rows: int, path: str) -> dict[str, float]:
    """Writes the index; returns its figures."""
    candidate, drawn_rows = CANDIDATES[name](), Drawn(rows)
    with peak_memory() as most:
        start = time.process_time()
        candidate.build(drawn_rows, path)
        seconds = time.process_time() - start - drawn_rows.seconds
    return {"build s": seconds, "memory MB": max(most) - most[0], "file MB": os.path.getsize(path) / MB}


def use(name: str, rows: int, path: str, truth: np.ndarray) -> dict[str, Any]:
    """Opens the index and searches it; returns its figures."""
    candidate, asked, half = CANDIDATES[name](), queries(rows), QUERIES // 2
    before, start = memory(), time.process_time()
    index = candidate.open(path)
    candidate.ask(index, asked[:1], EFFORTS[2])
    opened = {"open s": time.process_time() - start, "open MB": memory() - before}
    for effort in EFFORTS:
        start = time.process_time()
        found = candidate.ask(index, asked, effort)
        speed = QUERIES / (time.process_time() - start)
        right, persons = found == truth, found // IMAGES == truth // IMAGES
        opened[f"effort {effort}"] = (round(speed), right[:half].mean(), persons[:half].mean(), right[half:].mean())
    return opened


def in_process(function: Callable, *args: Any) -> Any:
    """Runs a function in a new process, so that its memory can be measured; returns its result."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *args).result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--candidates", nargs="+", default=list(CANDIDATES), choices=list(CANDIDATES))
    parser.add_argument("--quick", action="store_true", help="use 4,000 rows, only to check that all parts run")
    args = parser.parse_args()
    rows = 4000 if args.quick else args.rows
    reference = in_process(exact, rows)
    print(f"{rows:,} rows; exact: {1 / reference['seconds']:.3g} queries/s, {rows * E * 4 / MB:,.0f} MB", flush=True)
    for name in args.candidates:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "index")
            figures = in_process(build, name, rows, path) | in_process(use, name, rows, path, reference["truth"])
        texts = [f"{key} {value:.3g}" for key, value in figures.items() if isinstance(value, float)]
        print(f"{name}: {', '.join(texts)}; queries/s, recall for persons in it, by person, for others")
        for key, value in figures.items():
            if isinstance(value, tuple):
                print(f"    {key}: {value[0]:,}", *(f"{share:.3f}" for share in value[1:]), sep=", ", flush=True)


if __name__ == "__main__":
    main()
