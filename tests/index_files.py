"""Indexes of random embeddings in the current folder, and what a search finds in them."""

from pathlib import Path

import numpy as np

from command_line import exit_code
from partial_fc_tools.index.folder import IndexFolder
from partial_fc_tools.inference.index import Index, write_index
from partial_fc_tools.inference.origin import Origin

ORIGIN = Origin("0" * 64, True)
COUNT, SIZE = 300, 16


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def embeddings(count=COUNT, seed=0, size=SIZE):
    return unit(np.random.default_rng(seed).standard_normal((count, size), np.float32))


def write(stem, rows, prefix=None, origin=ORIGIN):
    """Writes embeddings with the names ``prefix/0``, ``prefix/1``, ... (default prefix: the stem)."""
    write_index(stem, Index(rows, [f"{prefix or stem}/{row}" for row in range(len(rows))]), origin)


def index(*words):
    return exit_code("index", *words)


def build(stem="a", folder="index", dtype="int8", rows=None):
    if rows is not None:
        write(stem, rows)
    assert index("build", stem, "--out", folder, "--dtype", dtype) == 0


def drop(folder, names):
    Path("names.txt").write_text("".join(f"{name}\n" for name in names))
    assert index("remove", folder, "names.txt") == 0


def search(folder, rows, top=1):
    """Returns the names and the cosines that an index finds for each embedding."""
    opened = IndexFolder(folder)
    results = [opened.lists.nearest(row, top) for row in rows]
    return [[opened.names[number] for number in ids] for ids, _ in results], [cosines for _, cosines in results]


def finds_all(folder, rows, prefix):
    return search(folder, rows)[0] == [[f"{prefix}/{row}"] for row in range(len(rows))]


def content(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}
