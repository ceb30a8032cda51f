"""Embeddings of all images of a set in a file, computed once: a later run, or one that was interrupted, goes on there.

``<stem>-<key>.npy`` holds (N, E) float16 of length 1; a row of zeros is an image that cannot be decoded, or whose
embedding is zero or not finite. The key is a hash of what the embeddings are of and made by, so that others are in
other files. ``<stem>-<key>.json`` says how many rows are finished, and is written after them.

Shapes: N images, E embedding.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np

from partial_fc.checkpoint.arrays import open_array, writable_array
from partial_fc.data.encoding import resize
from partial_fc.data.transforms import decode_any_size
from partial_fc.export.model import FaceModel
from partial_fc.export.model_file import model_files
from partial_fc.export.torch_files import ENDINGS
from partial_fc.utils.atomic_io import replace_file
from partial_fc.utils.decoder_messages import DecoderMessages
from partial_fc.utils.json_object import read_object
from partial_fc.utils.process_pool import in_chunks, ordered_map
from partial_fc_tools.inference.index import Recipe, embed_items

LARGEST = 1 << 16  # bytes of the .json
PART = 256  # images of a task: 2 MB of JPEGs


class Images(NamedTuple):
    """What is embedded: a name for messages, what identifies the content, N, and how to read an encoded image."""

    name: str
    digest: str
    length: int
    read: Callable[[int], bytes]


def embedded(stem: str, images: Images, model: str, recipe: Recipe, workers: int, bar: Any) -> str:
    """Returns the path of the embeddings of all images (N, E) float16; computes those that the file does not have.

    ``stem`` is where the path of the file begins, see above; nothing else may write there. ``bar`` counts finished
    images.

    Raises:
        OSError: a file cannot be read or written.
        ValueError: the model fails.
    """
    key = {"images": images.digest, "model": os.path.realpath(model), "time": _changed(model), **recipe._asdict()}
    del key["batch_size"]
    stem = f"{stem}-{sha256(json.dumps(key).encode()).hexdigest()[:16]}"
    finished = _finished(stem, key, images.length)
    bar.update(finished)
    if finished < images.length:
        parts = in_chunks(_read(images, finished), PART)
        with one_thread_each(workers):
            found = ordered_map(partial(embed_part, model, recipe), parts, workers)
            _write(stem, key, finished, images.length, (rows for _, rows in found), bar)
    return f"{stem}.npy"


def embed_part(model: str, recipe: Recipe, part: list[tuple[int, bytes | None]]) -> np.ndarray:
    """Returns (n, E) float16: the embeddings of some encoded images, zeros for those that have none."""
    opened = opened_model(model)
    height, width = opened.input.image_size
    pixels, usable = np.empty((len(part), height, width, 3), np.uint8), []
    with DecoderMessages() as messages:
        for row, (_, encoded) in enumerate(part):
            try:
                pixels[row] = _decoded(encoded, (height, width), recipe.scale, messages)
                usable.append(row)
            except ValueError:
                continue
    # A model of which no image of the part can be embedded still has its dimension.
    faces = pixels[usable] if usable else np.full((1, height, width, 3), 128, np.uint8)
    rows = embed_items(opened, faces, recipe)
    result = np.zeros((len(part), rows.shape[1]), np.float16)
    if usable:
        result[usable] = rows
    return result


@contextmanager
def one_thread_each(workers: int) -> Iterator[None]:
    """Processes started meanwhile compute with one thread each, as they share the cores."""
    before = os.environ.get("OMP_NUM_THREADS")
    if workers > 1:
        os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        if before is not None:
            os.environ["OMP_NUM_THREADS"] = before
        elif workers > 1:
            del os.environ["OMP_NUM_THREADS"]


@lru_cache(1)
def opened_model(path: str) -> FaceModel:
    """Returns the model; a process opens it once."""
    return FaceModel.open(path)


def _decoded(encoded: bytes | None, size: tuple[int, int], scale: bool, messages: DecoderMessages) -> np.ndarray:
    if encoded is None:
        raise ValueError
    image = messages.checked(lambda: decode_any_size(encoded))
    if image.shape[:2] != size:
        if not scale:
            raise ValueError
        image = resize(image, size)
    return image


def _read(images: Images, start: int) -> Iterator[tuple[int, bytes | None]]:
    for number in range(start, images.length):
        try:
            yield number, images.read(number)
        except ValueError:  # a damaged record
            yield number, None


def _changed(model: str) -> int:
    """Returns the time of the last change of a model's files, or of those in its folder."""
    folder = os.path.isdir(model)
    paths = [os.path.join(model, name) for name in os.listdir(model)] if folder else [model]
    models = [path for path in paths if path.endswith(MODELS) or not folder]
    files = [file for path in models for file in (model_files(path) if path.endswith(".onnx") else [path])]
    return max((os.stat(file).st_mtime_ns for file in files), default=0)


MODELS = (".onnx", ".params", *ENDINGS)


def _finished(stem: str, key: dict[str, Any], length: int) -> int:
    """Returns the number of rows that an earlier run has finished for the same key."""
    try:
        stored = read_object(f"{stem}.json", LARGEST)
        if stored["key"] == key and len(open_array(f"{stem}.npy")) == length:
            return int(stored["finished"])
    except (OSError, ValueError, KeyError, TypeError):  # none, or an incomplete one
        pass
    return 0


def _write(stem: str, key: dict[str, Any], finished: int, length: int, parts: Iterable[np.ndarray], bar: Any) -> None:
    rows = None
    for part in parts:
        if rows is None:
            if not finished:
                with suppress(FileNotFoundError):  # it describes the rows that are overwritten now
                    os.remove(f"{stem}.json")
            rows = writable_array(f"{stem}.npy", (length, part.shape[1]), np.float16, is_new=not finished)
        rows[finished : finished + len(part)] = part
        finished += len(part)
        rows.flush()  # before the file that says so
        replace_file(f"{stem}.json", [json.dumps({"key": key, "finished": finished}).encode()])
        bar.update(len(part))
