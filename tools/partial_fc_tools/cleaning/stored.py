"""The embeddings of a set, of altered copies of some of its images, and of test sets, in the working folder."""

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256

import numpy as np

from partial_fc.checkpoint.arrays import open_array
from partial_fc.data.face_records import FaceRecords
from partial_fc.data.pairs_bin import read_pairs
from partial_fc.export.providers import CUDA
from partial_fc.utils.folder_lock import locked
from partial_fc.utils.progress import progress
from partial_fc.utils.shared_folders import make_folder
from partial_fc.utils.staging import opened_folder, temporary_folder
from partial_fc_tools.inference.options import recipe_of
from partial_fc_tools.sets.source import image_size_of, open_set

from .copies import ALTERATION, altered, sampled
from .embeddings import Images, embedded, opened_model

SEARCHED = 256  # embeddings; mostly one of them is not zero, so that not all are read


class Stored:
    """Embeds what the working folder does not have yet.

    Args:
        records: the set.
        tests: test sets.
        work: the working folder.
        args: model, no_flip, resize, batch_size and workers of the command.

    Attributes:
        path: of the embeddings of the set.
        images: (N, E) float16, memory-mapped.
        copies: (K,) float32, cosines of some images to their altered copies.
        tests: (T, E) float16 of each test set.

    Raises:
        ValueError: the images of a set have another size than the model takes, or none has an embedding.
    """

    def __init__(self, records: FaceRecords, tests: Sequence[Images], work: str, args: argparse.Namespace):
        self._work, self._args = work, args
        model = opened_model(args.model)
        size = image_size_of(records)
        if size != model.input.image_size and not args.resize:
            raise ValueError(
                f"{records.rec_path} has images of {size[0]}x{size[1]}, {model.name} takes {model.input.image_size[0]}x"
                f"{model.input.image_size[1]}: use another model, or --resize to scale them for it"
            )
        self._recipe = recipe_of(args, model)
        # Each process would load the model onto the GPU.
        self._workers = 1 if CUDA in model.session.get_providers() else args.workers
        name = records.rec_path
        every = Images(name, records.digest, records.num_images, lambda position: records.read_image(position)[0])
        self.path = self._embed("images", every)
        self.images = open_array(self.path)
        if not self.images[:SEARCHED].any() and not self.images.any():
            raise ValueError(f"{model.name} computes no embedding of {name} that is finite and not zero")
        positions = sampled(records.num_images)
        copies = Images(
            name,
            f"{ALTERATION} {records.digest}",
            len(positions),
            lambda number: altered(every.read(positions[number])),
        )
        read = open_array(self._embed("copies", copies))
        decoded = read.any(axis=1)
        originals = self.images[positions[decoded]].astype(np.float32)
        self.copies = np.einsum("ke,ke->k", originals, read[decoded].astype(np.float32))
        self.tests = [self._embed_test(test) for test in tests]

    def _embed_test(self, test: Images) -> np.ndarray:
        rows = open_array(self._embed("test", test))
        missing = np.flatnonzero(~rows.any(axis=1))
        if len(missing):
            raise ValueError(
                f"{test.name}: image {missing[0]} cannot be decoded, is not of the model's size, or its embedding is "
                "zero or not finite: leave it out, or use --resize"
            )
        return rows

    def _embed(self, stem: str, images: Images) -> str:
        with progress(images.length, "image", f"embedding {os.path.basename(images.name)}") as bar:
            path = os.path.join(self._work, stem)
            return embedded(path, images, self._args.model, self._recipe, self._workers, bar)


def open_test(path: str) -> Images:
    """Opens a test set: pairs (.bin), or a face set. Raises OSError or ValueError, naming the file."""
    if path.endswith(".bin"):
        images, _ = read_pairs(path)
        digest = sha256()
        for image in images:
            digest.update(image)
        return Images(os.path.basename(path), digest.hexdigest(), len(images), images.__getitem__)
    records = open_set(path)
    return Images(path, records.digest, records.num_images, lambda position: records.read_image(position)[0])


@contextmanager
def working_folder(path: str) -> Iterator[None]:
    """Keeps other commands out of the working folder, which is created, and removed at the end if nothing is in it.

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
