"""Checks that an ONNX file computes the same embeddings as the backbone it was exported from.

Shapes: N faces or other items, H, W image size, E embedding.
"""

import logging
from collections.abc import Callable, Mapping

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
STEP = 1e-4  # of a pixel, which is from 0 to 255, or of another input
NAME = "the ONNX file of this backbone"


def random_faces(image_size: tuple[int, int], count: int = RANDOM_FACES) -> np.ndarray:
    """Returns (count, H, W, 3) uint8 noise, the same on every call: a harder test than faces."""
    return np.random.default_rng(0).integers(0, 256, (count, *image_size, 3), np.uint8)


def check_form(content: bytes, raw_pixels: bool = True) -> FaceModel:
    """Loads the content of an ONNX file and checks that it is valid.

    Args:
        content: Content of the file.
        raw_pixels: Whether the model has to take pixels 0..255 and normalize them itself, or normalized ones.

    Raises:
        ValueError: The file is not valid, has a fixed batch size, or takes pixels of the other kind.
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
    """Checks that the ONNX file of a backbone computes the embeddings of its framework, one by one and all at once.

    If the framework's own embeddings are not finite, or change as much when pixels change by STEP, the network
    cannot be compared, and a warning is logged instead: so are deep networks whose running statistics are still those
    of the start.

    Args:
        content: Content of the file.
        faces: (N, H, W, 3) uint8 RGB, N >= 0; they are compared beside random images.
        embed: Faces (n, H, W, 3), uint8 or float32 -> (n, E) by the framework.
        framework: Its name, for messages.
        raw_pixels: See `check_form`.

    Raises:
        ValueError: The file is not valid, or the embeddings differ by a cosine distance above 1e-4.
    """
    model = check_form(content, raw_pixels)
    faces = np.concatenate([random_faces((faces.shape[1], faces.shape[2])), faces])
    _compare(
        lambda size: model.embed(faces, size),
        len(faces),
        embed(faces),
        lambda: embed(faces + np.float32(STEP)),
        framework,
    )


def open_named(content: bytes, examples: Inputs) -> ItemModel:
    """Opens an ONNX file that takes what the backbone takes, and checks its form.

    Args:
        content: Content of the file.
        examples: Items as the backbone takes them: one array, or several by name.

    Raises:
        ValueError: The file is not valid, or has other inputs, or a fixed batch size.
    """
    _check_valid(content)
    model = ItemModel(content, NAME)
    names = list(examples) if isinstance(examples, Mapping) else [INPUT]
    if set(model.input_names) != set(names):
        found = ", ".join(model.input_names)
        raise ValueError(f"{NAME} takes {found}, expected {', '.join(names)}: the backbone must use all of its inputs")
    return model


def check_named(content: bytes, examples: Inputs, embed: Callable[[Inputs], np.ndarray], framework: str) -> None:
    """As `check_export`, for a backbone of other inputs than images.

    Args:
        content, examples: See `open_named`; one item or more.
        embed: Items -> (n, E) by the framework.
        framework: Its name, for messages.

    Raises:
        ValueError: The file is not valid, or the embeddings differ by a cosine distance above 1e-4.
    """
    model = open_named(content, examples)

    def moved(array: np.ndarray) -> np.ndarray:
        return array + array.dtype.type(STEP) if np.issubdtype(array.dtype, np.floating) else array

    _compare(
        lambda size: model.embed(examples, size),
        num_items(examples),
        embed(examples),
        lambda: embed(map_inputs(moved, examples)),
        framework,
    )


def _check_valid(content: bytes) -> None:
    try:
        onnx.checker.check_model(content, full_check=True)
    except Exception as error:  # errors of the checker have no common base class
        raise ValueError(f"{NAME} is not a valid ONNX model: {first_line(error)}") from None


def _compare(
    run: Callable[[int], np.ndarray],
    count: int,
    expected: np.ndarray,
    moved: Callable[[], np.ndarray],
    framework: str,
) -> None:
    """Compares embeddings (N, E), see `check_export`.

    Args:
        run: Items at a time -> those of the file.
        count: N.
        expected: Those of the framework.
        moved: Returns those of inputs that differ by STEP.
        framework: Its name.
    """
    if not np.isfinite(expected).all():
        logging.warning("%s is not compared: %s's own embeddings are not finite, as before training", NAME, framework)
        return

    def distance(embeddings: np.ndarray) -> float:
        """Returns the largest cosine distance."""
        return float(np.max(squared_distances(embeddings, expected))) / 2

    worst = max(distance(run(size)) for size in (1, count))
    if worst < MAX_COSINE_DISTANCE:
        return
    mismatch = (
        f"{NAME} computes other embeddings than the backbone it was exported from: cosine distance {worst:.3g}, "
        f"allowed {MAX_COSINE_DISTANCE:g}"
    )
    own = distance(moved())
    if not own > MAX_COSINE_DISTANCE:
        raise ValueError(mismatch)
    logging.warning(
        f"{mismatch}; but {framework}'s own embeddings change by {own:.3g} when inputs change by {STEP:g}: this "
        "network is chaotic, as deep ones are before training, so the file is kept"
    )
