"""Embeddings of many face images, and the two files that keep them: an index to search in.

`<out>.npy` holds the embeddings, each of length 1, `<out>.txt` the name of each, one a line. They are only comparable
with those of the same model.

Shapes: N faces, E embedding.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import IO, NamedTuple

import numpy as np

from partial_fc.utils.staging import staged_files

from .image_folder import read_faces
from .model import FaceModel

LENGTH_TOLERANCE = 1e-3  # of a length that should be 1: float16 files are within it, embeddings as models give them not


class Recipe(NamedTuple):
    """How an image becomes an embedding: `mirrored`: that of its mirror image is added, `scale`: as in read_face."""

    mirrored: bool = True
    scale: bool = False
    batch_size: int = 32


class Index(NamedTuple):
    """`embeddings` (N, E) float32, of length 1, of the images `names`."""

    embeddings: np.ndarray
    names: list[str]


def embed_faces(model: FaceModel, images: np.ndarray, names: Sequence[str], recipe: Recipe) -> np.ndarray:
    """(N, E) float32 of length 1, of images (N, H, W, 3) uint8 RGB.

    Raises:
        ValueError: an embedding is not finite, or zero, which has no direction; names the image.
    """
    embed = model.embed_with_mirrored if recipe.mirrored else model.embed
    embeddings = embed(images, recipe.batch_size)
    lengths = np.sqrt(np.einsum("ne,ne->n", embeddings, embeddings, dtype=np.float64))
    if not lengths.all():
        raise ValueError(f"{model.name} gives an embedding of zeros for {names[lengths.argmin()]}")
    return (embeddings / lengths[:, None]).astype(np.float32)


def embed_files(
    model: FaceModel,
    root: str | os.PathLike,
    names: Sequence[str],
    recipe: Recipe,
    advance: Callable[[int], object] = lambda files: None,
) -> tuple[Index, list[str]]:
    """The embeddings of the files `names` below `root`, and what is wrong with those that are skipped.

    Args:
        advance: called with the number of files that are done.

    Raises:
        ValueError: none of them can be used, or as embed_faces.
    """
    size = model.input.batch or recipe.batch_size
    kept: list[str] = []
    skipped: list[str] = []
    embeddings = np.empty((0, 0), np.float32)
    for start in range(0, len(names), size):
        part = names[start : start + size]
        faces = read_faces(root, part, model.input.image_size, recipe.scale)
        if faces.names:
            rows = embed_faces(model, faces.images, faces.names, recipe)
            if not kept:  # once for all, as a list of parts would need twice the memory when they are joined
                embeddings = np.empty((len(names), rows.shape[1]), np.float32)
            embeddings[len(kept) : len(kept) + len(rows)] = rows
        kept += faces.names
        skipped += faces.skipped
        advance(len(part))
    if not kept:
        raise ValueError(f"none of {len(names)} images in {os.fspath(root)} can be used: {skipped[0]}")
    return Index(embeddings[: len(kept)], kept), skipped


def index_paths(path: str) -> tuple[str, str]:
    """The two files of an index, named with or without the ending of the first. Raises ValueError for a folder."""
    if not os.path.basename(path):
        raise ValueError(f"{path or repr(path)} names a folder: name the files in it, without ending")
    stem = path[: -len(".npy")] if path.endswith(".npy") else path
    return stem + ".npy", stem + ".txt"


def write_index(path: str, make: Callable[[], Index], force: bool) -> Index:
    """Write what `make` gives; it is only called where the files may be written.

    Raises:
        OSError: they are there already and not `force`, or cannot be written.
    """
    array, text = index_paths(path)
    folder = os.path.dirname(array)
    with staged_files(folder, [os.path.basename(array), os.path.basename(text)], force) as stage:
        index = make()
        np.save(os.path.join(stage, os.path.basename(array)), index.embeddings)
        with _open_names(os.path.join(stage, os.path.basename(text)), "w") as file:
            file.writelines(name + "\n" for name in index.names)
    return index


def read_index(path: str) -> Index:
    """The index that write_index has written.

    Raises:
        OSError, ValueError: a file is missing or does not fit; names it.
    """
    array, text = index_paths(path)
    try:
        embeddings = np.load(array, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{array} is no array that numpy reads: {error}") from None
    if embeddings.ndim != 2 or embeddings.dtype != np.float32:
        raise ValueError(f"{array} holds {embeddings.dtype} {embeddings.shape}, not embeddings (N, E) of float32")
    lengths = np.sqrt(np.einsum("ne,ne->n", embeddings, embeddings))
    wrong = np.flatnonzero(~(np.abs(lengths - 1) <= LENGTH_TOLERANCE))
    if len(wrong):
        raise ValueError(
            f"{array}: row {wrong[0]} has length {lengths[wrong[0]]:.4g} instead of 1: make the index with "
            "python -m partial_fc.inference.embed"
        )
    with _open_names(text, "r") as file:
        names = file.read().split("\n")[:-1]
    if len(names) != len(embeddings):
        raise ValueError(f"{text} has {len(names)} lines for the {len(embeddings)} embeddings of {array}")
    return Index(embeddings, names)


def _open_names(path: str, mode: str) -> IO[str]:
    """The file of names, which may be any bytes."""
    return open(path, mode, newline="\n", encoding="utf-8", errors="surrogateescape")
