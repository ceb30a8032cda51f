"""Checks that an ONNX file computes the same embeddings as its backbone.

Shapes: N faces or other items, H, W image size, E embedding.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx

from partial_fc.data.batch import Inputs, map_inputs, num_items
from partial_fc.utils.distances import squared_distances

from .item_model import ItemModel
from .model import FaceModel
from .model_file import first_line
from .onnx import INPUT

MAX_COSINE_DISTANCE = 1e-4
RANDOM_FACES = 4
STEP = 1e-4  # change of the inputs that reveals a chaotic network; pixels are from 0 to 255
NAME = "the ONNX file of this backbone"


def random_faces(image_size: tuple[int, int], count: int = RANDOM_FACES) -> np.ndarray:
    """Returns (count, H, W, 3) uint8 noise, the same on every call. It is a harder test than faces."""
    return np.random.default_rng(0).integers(0, 256, (count, *image_size, 3), np.uint8)


def check_form(content: bytes, raw_pixels: bool = True) -> FaceModel:
    """Loads the content of an ONNX file and checks its input.

    Args:
        content: content of the file.
        raw_pixels: whether the model must take pixels 0..255 and normalize them itself, rather than normalized pixels.

    Raises:
        ValueError: the file is not valid, has a fixed batch size, or takes different pixels.
    """
    _check_valid(content)
    model = FaceModel(content, NAME)
    if model.input.batch is not None or model.input.normalizes != raw_pixels:
        pixels = "raw" if raw_pixels else "normalized"
        raise ValueError(f"{NAME} takes {model.input}, expected a dynamic batch size and {pixels} pixels")
    return model


def check_export(
    content: bytes,
    faces: np.ndarray,
    embed: Callable[[np.ndarray], np.ndarray],
    framework: str,
    raw_pixels: bool = True,
) -> None:
    """Checks that an ONNX file computes the same embeddings as the framework, both one by one and in one batch.

    If the framework's embeddings are not finite, or move by more than the allowed distance when pixels change by STEP,
    they cannot be compared, and a warning is logged instead. This happens to deep networks before training, because of
    their initial running statistics.

    Args:
        content: content of the file.
        faces: (N, H, W, 3) uint8 RGB, N >= 0, compared in addition to random images.
        embed: maps faces (n, H, W, 3), uint8 or float32, to the framework's embeddings (n, E).
        framework: name of the framework, for messages.
        raw_pixels: see `check_form`.

    Raises:
        ValueError: the file is not valid, or the cosine distance of an embedding is above 1e-4.
    """
    model = check_form(content, raw_pixels)
    faces = np.concatenate([random_faces((faces.shape[1], faces.shape[2])), faces])
    _compare(model, faces, faces + np.float32(STEP), embed, framework)


def open_named(content: bytes, examples: Inputs) -> ItemModel:
    """Loads the content of an ONNX file and checks that it has the backbone's inputs.

    Args:
        content: content of the file.
        examples: inputs of the backbone, one array or arrays by name.

    Raises:
        ValueError: the file is not valid, has different inputs, or has a fixed batch size.
    """
    _check_valid(content)
    model = ItemModel(content, NAME)
    names = list(examples) if isinstance(examples, Mapping) else [INPUT]
    if set(model.input_names) != set(names):
        inputs = f"takes {', '.join(model.input_names)}, expected {', '.join(names)}"
        raise ValueError(f"{NAME} {inputs}: the backbone must use all of its inputs")
    return model


def check_named(content: bytes, examples: Inputs, embed: Callable[[Inputs], np.ndarray], framework: str) -> None:
    """Like `check_export`, for a backbone whose inputs are not images.

    Args:
        content: content of the file.
        examples: one or more inputs of the backbone, see `open_named`.
        embed: maps inputs to the framework's embeddings (n, E).
        framework: name of the framework, for messages.

    Raises:
        ValueError: the file is not valid, or the cosine distance of an embedding is above 1e-4.
    """
    model = open_named(content, examples)

    def moved(array: np.ndarray) -> np.ndarray:
        return array + array.dtype.type(STEP) if np.issubdtype(array.dtype, np.floating) else array

    _compare(model, examples, map_inputs(moved, examples), embed, framework)


def _check_valid(content: bytes) -> None:
    try:
        onnx.checker.check_model(content, full_check=True)
    except Exception as error:  # errors of the checker have no common base class
        raise ValueError(f"{NAME} is not a valid ONNX model: {first_line(error)}") from None


def _compare(model: Any, inputs: Inputs, moved: Inputs, embed: Callable[[Any], np.ndarray], framework: str) -> None:
    """Compares embeddings of inputs, see `check_export`; ``moved`` are the inputs changed by STEP."""
    expected = embed(inputs)
    if not np.isfinite(expected).all():
        logging.warning("%s is not compared: %s's own embeddings are not finite, as before training", NAME, framework)
        return

    def distance(embeddings: np.ndarray) -> float:
        """Returns the largest cosine distance."""
        return float(np.max(squared_distances(embeddings, expected))) / 2

    worst = max(distance(model.embed(inputs, size)) for size in (1, num_items(inputs)))
    if worst < MAX_COSINE_DISTANCE:
        return
    mismatch = (
        f"{NAME} computes other embeddings than the backbone it was exported from: cosine distance {worst:.3g}, "
        f"allowed {MAX_COSINE_DISTANCE:g}"
    )
    change = distance(embed(moved))
    if not change > MAX_COSINE_DISTANCE:  # also if it is NaN
        raise ValueError(mismatch)
    logging.warning(
        f"{mismatch}; but {framework}'s own embeddings change by {change:.3g} when inputs change by {STEP:g}: this "
        "network is chaotic, as deep ones are before training, so the file is kept"
    )
