"""Index of embeddings: computed from files or texts, stored in three files, searched by `search`.

``<out>.npy`` holds the embeddings, each of length 1, and ``<out>.txt`` their names, one per line. ``<out>.json`` holds
their origin, as embeddings of different models cannot be compared; earlier versions did not write it.

Shapes: N faces or other items, E embedding.
"""

import json
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from partial_fc.checkpoint.arrays import open_array
from partial_fc.data.batch import Inputs
from partial_fc.export.item_model import ItemModel
from partial_fc.export.model import FaceModel
from partial_fc.export.model_file import model_files
from partial_fc.utils.distances import normalized
from partial_fc.utils.json_object import read_object
from partial_fc.utils.text import plural, read_lines

from .items import Images, Texts
from .origin import Origin, files_digest

LARGEST_ORIGIN = 1 << 12  # bytes
UNUSABLE = "has an embedding that is zero or not finite: replace or remove it"
LENGTH_TOLERANCE = 1e-3  # allowed deviation from length 1; float16 rounding is below it


class Recipe(NamedTuple):
    """How embeddings are computed."""

    mirrored: bool = True  # add the embeddings of the mirror images
    scale: bool = False  # scale images of another size
    batch_size: int = 32


class Index(NamedTuple):
    """Embeddings of named items."""

    embeddings: np.ndarray  # (N, E) float32 of length 1
    names: list[str]  # of the N items
    origin: Origin | None = None  # None if it is unknown


def origin_of(model: FaceModel | ItemModel, recipe: Recipe) -> Origin:
    """Returns the origin of a model's embeddings. Raises OSError."""
    return Origin(model.path and files_digest(model_files(model.path)), recipe.mirrored)


def embed_items(model: FaceModel | ItemModel, items: Inputs, recipe: Recipe) -> np.ndarray:
    """Returns embeddings (N, E) float32 of length 1 of items, such as images (N, H, W, 3) uint8 RGB.

    An item whose embedding is zero or not finite gets a row of zeros. Raises ValueError if the model fails.
    """
    if recipe.mirrored and isinstance(model, FaceModel):
        embeddings = model.embed_with_mirrored(items, recipe.batch_size)
    else:
        embeddings = model.embed(items, recipe.batch_size)
    return normalized(embeddings).astype(np.float32)


def embed_one(model: FaceModel | ItemModel, items: Images | Texts, name: str, recipe: Recipe) -> np.ndarray:
    """Returns the embedding (E,) of length 1 of a file or a text. Raises OSError or ValueError that names it."""
    (embedding,) = embed_items(model, items.read_one(name), recipe)
    if not embedding.any():
        raise ValueError(f"{name} {UNUSABLE}")
    return embedding


def embed_all(
    model: FaceModel | ItemModel,
    items: Images | Texts,
    path: str | os.PathLike,
    names: Sequence[str],
    recipe: Recipe,
    advance: Callable[[int], object] = lambda count: None,
) -> tuple[Index, list[str]]:
    """Computes the embeddings of the items ``names`` in a folder or a text file.

    ``advance`` is called with the number of items of each finished batch.

    Returns:
        The index, and a message for each skipped item.

    Raises:
        ValueError: No item can be used, or the model fails.
    """
    size = model.batch or recipe.batch_size
    kept: list[str] = []
    skipped: list[str] = []
    embeddings = np.empty((0, 0), np.float32)
    for start in range(0, len(names), size):
        part = names[start : start + size]
        usable, inputs, unusable = items.read(path, part)
        if usable:
            rows = embed_items(model, inputs, recipe)
            good = rows.any(axis=1)
            unusable += [f"{items.describe(path, name)} {UNUSABLE}" for name, fits in zip(usable, good) if not fits]
            usable, rows = [name for name, fits in zip(usable, good) if fits], rows[good]
            if not kept:  # one array for all items: concatenating batches would need twice the memory
                embeddings = np.empty((len(names), rows.shape[1]), np.float32)
            embeddings[len(kept) : len(kept) + len(rows)] = rows
        kept += usable
        skipped += unusable
        advance(len(part))
    if not kept:
        total = f"{plural(len(names), items.noun)} in {os.fspath(path)}"
        raise ValueError(f"no usable {items.noun} among {total}: {skipped[0]}")
    return Index(embeddings[: len(kept)], kept), skipped


def index_paths(path: str) -> tuple[str, str, str]:
    """Returns the paths of an index's three files, for a path with or without ``.npy``. ValueError for a folder."""
    if not os.path.basename(path):
        raise ValueError(f"{path or repr(path)} is a folder: give the path of the files in it, without extension")
    stem = path[: -len(".npy")] if path.endswith(".npy") else path
    return stem + ".npy", stem + ".txt", stem + ".json"


def write_index(path: str, index: Index, origin: Origin) -> None:
    """Writes the three files of an index. Raises OSError."""
    array, text, about = index_paths(path)
    np.save(array, index.embeddings)
    with open(about, "w", encoding="utf-8") as file:
        json.dump(origin._asdict(), file)
    with open(text, "w", newline="\n", encoding="utf-8", errors="surrogateescape") as file:
        file.writelines(name + "\n" for name in index.names)


def read_index(path: str) -> Index:
    """Reads an index written by `write_index`.

    Raises:
        OSError: A file is missing.
        ValueError: A file is damaged, or the numbers of embeddings and names differ. The message names the file.
    """
    array, text, about = index_paths(path)
    embeddings = read_embeddings(path)
    names = read_names(text)
    if len(names) != len(embeddings):
        raise ValueError(f"{text} has {len(names)} lines for the {len(embeddings)} embeddings of {array}")
    if not os.path.exists(about):
        return Index(embeddings, names)
    try:
        return Index(embeddings, names, Origin.read(read_object(about, LARGEST_ORIGIN)))
    except ValueError as error:
        raise ValueError(f"{about} cannot be used ({error}): make it again with partial-fc embed") from None


def read_embeddings(path: str) -> np.ndarray:
    """Maps the embeddings of an index into memory, (N, E) float32; reads them once to check their lengths.

    Raises:
        OSError: The file is missing.
        ValueError: The file is damaged, or its rows are not of length 1; names the file.
    """
    array = index_paths(path)[0]
    embeddings = np.asarray(open_array(array))
    if embeddings.ndim != 2 or embeddings.dtype != np.float32:
        raise ValueError(f"{array} holds {embeddings.dtype} {embeddings.shape}, expected float32 embeddings (N, E)")
    lengths = np.sqrt(np.einsum("ne,ne->n", embeddings, embeddings))
    wrong = np.flatnonzero(~(np.abs(lengths - 1) <= LENGTH_TOLERANCE))
    if len(wrong):
        raise ValueError(
            f"{array}: row {wrong[0]} has length {lengths[wrong[0]]:.4g} instead of 1: make the index with "
            "partial-fc embed"
        )
    return embeddings


def read_names(path: str) -> list[str]:
    """Reads the names in a file, one per line, see `read_lines`. Raises ValueError for an empty line."""
    names = list(read_lines(path, any_bytes=True))
    if "" in names:
        raise ValueError(f"{path}, line {names.index('') + 1}: it is empty: a file of names has one per line")
    return names
