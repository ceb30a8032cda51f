"""The working folder: embeddings of a set, of altered copies of some of its images, and of test sets.

Shapes: N images, K images with altered copies, T images of a test set, E embedding.
"""

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from typing import NamedTuple

import numpy as np

from partial_fc.checkpoint.arrays import open_array
from partial_fc.data.face_records import FaceRecords
from partial_fc.data.pairs_bin import read_pairs
from partial_fc.export.providers import CUDA
from partial_fc.utils.folder_lock import locked
from partial_fc.utils.shared_folders import make_folder
from partial_fc.utils.staging import opened_folder, temporary_folder
from partial_fc_tools.inference.options import recipe_of
from partial_fc_tools.sets.source import image_size_of, open_set

from .copies import ALTERATION, altered, sampled
from .embeddings import Images, embedded, opened_model

SEARCHED = 256  # embeddings at the beginning that are searched for a nonzero one before all are read


class Stored(NamedTuple):
    """Embeddings in the working folder."""

    path: str  # file of the set's embeddings
    images: np.ndarray  # (N, E) float16, memory-mapped
    copies: np.ndarray  # (K,) float32, cosines of images to their altered copies
    tests: list[np.ndarray]  # (T, E) float16 of each test set


def stored_embeddings(records: FaceRecords, tests: Sequence[Images], work: str, args: argparse.Namespace) -> Stored:
    """Computes the embeddings that the working folder lacks.

    Args:
        records: the set.
        tests: the test sets.
        work: the working folder.
        args: model, no_flip, resize, batch_size and workers of the command.

    Raises:
        OSError, ValueError: a file cannot be read or written, the images of a set do not have the model's size, or none
            has an embedding.
    """
    model = opened_model(args.model)
    size = image_size_of(records)
    if size != model.input.image_size and not args.resize:
        raise ValueError(
            f"{records.rec_path} has images of {size[0]}x{size[1]}, {model.name} takes {model.input.image_size[0]}x"
            f"{model.input.image_size[1]}: use another model, or --resize to scale them for it"
        )
    recipe = recipe_of(args, model)
    # On a GPU, each process would load the model.
    workers = 1 if CUDA in model.session.get_providers() else args.workers

    def embed(stem: str, images: Images) -> str:
        return embedded(os.path.join(work, stem), images, args.model, recipe, workers)

    originals = images_of(records)
    path = embed("images", originals)
    images = open_array(path)
    if not images[:SEARCHED].any() and not images.any():
        raise ValueError(f"{model.name} computes no embedding of {records.rec_path} that is finite and not zero")
    positions = sampled(records.num_images)
    digest = f"{ALTERATION} {records.digest}"
    copied = Images(originals.name, digest, len(positions), lambda row: altered(originals.read(positions[row])))
    copies = np.asarray(open_array(embed("copies", copied)))
    decoded = copies.any(axis=1)
    cosines = np.einsum("ke,ke->k", images[positions[decoded]].astype(np.float32), copies[decoded].astype(np.float32))
    test_rows = []
    for test in tests:
        rows = open_array(embed("test", test))
        missing = np.flatnonzero(~rows.any(axis=1))
        if len(missing):
            raise ValueError(
                f"{test.name}: image {missing[0]} cannot be decoded, does not have the model's size, or its embedding "
                "is zero or not finite: leave it out, or use --resize"
            )
        test_rows.append(rows)
    return Stored(path, images, cosines, test_rows)


def images_of(records: FaceRecords) -> Images:
    """Returns the images of a set."""
    return Images(
        records.rec_path, records.digest, records.num_images, lambda position: records.read_image(position)[0]
    )


def open_test(path: str) -> Images:
    """Opens a test set: pairs (.bin), or a face set. Raises OSError or ValueError, which names the file."""
    if not path.endswith(".bin"):
        return images_of(open_set(path))._replace(name=path)
    images, _ = read_pairs(path)
    digest = sha256()
    for image in images:
        digest.update(image)
    return Images(os.path.basename(path), digest.hexdigest(), len(images), images.__getitem__)


@contextmanager
def working_folder(path: str) -> Iterator[None]:
    """Creates the working folder and locks it; an empty one is removed at the end.

    Raises OSError if another command uses it, or all users can write to it.
    """
    make_folder(path)
    with locked(path):
        try:
            yield
        finally:
            with suppress(OSError):
                os.rmdir(path)


@contextmanager
def saved(folder: str, **arrays: np.ndarray) -> Iterator[dict[str, str]]:
    """Yields the paths of temporary .npy files of arrays, which other processes map into memory."""
    with opened_folder(folder) as place, temporary_folder(place, folder) as inside:
        paths = {name: os.path.join(inside, f"{name}.npy") for name in arrays}
        for name, array in arrays.items():
            np.save(paths[name], array)
        yield paths
