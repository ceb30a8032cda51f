"""Embeddings of a set's images in a file: computed once, and resumed by a later run after an interruption.

``<stem>-<key>.npy`` holds (N, E) float16 of length 1; a row of zeros is an image that cannot be decoded, or whose
embedding is zero or not finite. The key is a hash of the images, the model and the options, so different embeddings are
in different files. ``<stem>-<key>.json`` holds the number of finished rows and is written after them.

Shapes: N images, E embedding, n images of a task.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import lru_cache, partial
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np

from partial_fc.checkpoint.arrays import open_array, writable_array
from partial_fc.export.model import FaceModel
from partial_fc.export.model_file import model_files
from partial_fc.export.torch_files import ENDINGS
from partial_fc.utils.atomic_io import replace_file
from partial_fc.utils.decoder_messages import DecoderMessages
from partial_fc.utils.json_object import read_object
from partial_fc.utils.process_pool import environment_variable, in_chunks, ordered_map
from partial_fc.utils.progress import progress
from partial_fc_tools.inference.image_folder import decode_face
from partial_fc_tools.inference.index import Recipe, embed_items

LARGEST = 1 << 16  # bytes of the .json
PART = 256  # images of a task: 2 MB of JPEGs
MODELS = (".onnx", ".params", *ENDINGS)


class Images(NamedTuple):
    """Images to embed: name for messages, hash of the content, N, and a function that reads an encoded image."""

    name: str
    digest: str
    length: int
    read: Callable[[int], bytes]


def embedded(stem: str, images: Images, model: str, recipe: Recipe, workers: int) -> str:
    """Computes the embeddings that the file lacks and returns its path. The file holds (N, E) float16.

    Args:
        stem: beginning of the path; no other process may write there.
        images: N images.
        model: path of the model.
        recipe: options of the embeddings.
        workers: number of processes.

    Raises:
        OSError: a file cannot be read or written.
        ValueError: the model fails.
    """
    key = {"images": images.digest, "model": os.path.realpath(model), "time": _modified(model), **recipe._asdict()}
    del key["batch_size"]
    stem = f"{stem}-{sha256(json.dumps(key).encode()).hexdigest()[:16]}"
    finished = _finished_rows(stem, key, images.length)
    parts = in_chunks(_encoded(images, finished), PART)
    text = f"embedding {os.path.basename(images.name)}"
    with progress(images.length, "image", text) as bar, one_thread_each(workers):
        bar.update(finished)
        array = None
        for _, rows in ordered_map(partial(embed_part, model, recipe), parts, workers):
            if array is None:
                if not finished:
                    with suppress(FileNotFoundError):  # describes rows that are about to be overwritten
                        os.remove(f"{stem}.json")
                array = writable_array(f"{stem}.npy", (images.length, rows.shape[1]), np.float16, is_new=not finished)
            array[finished : finished + len(rows)] = rows
            finished += len(rows)
            array.flush()  # before the file that counts these rows
            replace_file(f"{stem}.json", [json.dumps({"key": key, "finished": finished}).encode()])
            bar.update(len(rows))
    return f"{stem}.npy"


def embed_part(model: str, recipe: Recipe, part: list[bytes]) -> np.ndarray:
    """Returns the embeddings (n, E) float16 of encoded images; zeros for images without an embedding."""
    face_model = opened_model(model)
    height, width = face_model.input.image_size
    pixels, usable = np.empty((len(part), height, width, 3), np.uint8), []
    with DecoderMessages() as messages:
        for row, encoded in enumerate(part):
            with suppress(ValueError):
                pixels[row] = decode_face(encoded, (height, width), recipe.scale, messages)
                usable.append(row)
    # If no image of the part is usable, a gray one still shows the size of the embedding.
    faces = pixels[usable] if usable else np.full((1, height, width, 3), 128, np.uint8)
    rows = embed_items(face_model, faces, recipe)
    result = np.zeros((len(part), rows.shape[1]), np.float16)
    if usable:
        result[usable] = rows
    return result


def one_thread_each(workers: int) -> AbstractContextManager[None]:
    """Processes that are started inside the block use one thread each, as they share the cores."""
    return environment_variable("OMP_NUM_THREADS", "1") if workers > 1 else nullcontext()


@lru_cache(1)
def opened_model(path: str) -> FaceModel:
    """Returns the model, which a process opens once."""
    return FaceModel.open(path)


def _encoded(images: Images, start: int) -> Iterator[bytes]:
    for number in range(start, images.length):
        try:
            yield images.read(number)
        except ValueError:  # a damaged record
            yield b""


def _modified(model: str) -> int:
    """Returns the modification time of a model's newest file, or of the newest model file in a folder."""
    paths = [model]
    if os.path.isdir(model):
        paths = [os.path.join(model, name) for name in os.listdir(model) if name.endswith(MODELS)]
    files = [file for path in paths for file in (model_files(path) if path.endswith(".onnx") else [path])]
    return max((os.stat(file).st_mtime_ns for file in files), default=0)


def _finished_rows(stem: str, key: dict[str, Any], length: int) -> int:
    """Returns the number of rows that an earlier run has finished for the same key."""
    try:
        stored = read_object(f"{stem}.json", LARGEST)
        if stored["key"] == key and len(open_array(f"{stem}.npy")) == length:
            return int(stored["finished"])
    except (OSError, ValueError, KeyError, TypeError):  # missing or incomplete
        pass
    return 0
