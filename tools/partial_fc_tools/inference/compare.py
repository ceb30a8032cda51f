"""Compares two images, such as faces, with an ONNX model.

Prints the cosine similarity (-1 to 1) and the squared distance (0 to 4) of the embeddings. With a threshold for the
squared distance (--threshold, or the model's metadata from its verification), also prints whether the images are of the
same class, such as a person. They must have the model's input size; faces must be aligned. As in face verification, the
embedding of an image is the sum of the embeddings of the image and its mirror image, unless the model was trained with
rand_mirror=False. An embedding that embed has written (a .npy file of one image) may replace an image, unless another
model has made it. The exit code does not depend on the verdict.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from partial_fc.utils.cli import add_json, number_above_0
from partial_fc.utils.text import say, say_json

from .options import add_model, add_reader, open_model

if TYPE_CHECKING:
    import numpy as np

    from partial_fc.export.item_model import ItemModel
    from partial_fc.export.model import FaceModel

THRESHOLD, SET = "verification_threshold", "verification_set"  # metadata keys of ONNX models
squared_distance = number_above_0("a squared distance", 4)  # argparse type; unit vectors are at most 4 apart
EMBEDDINGS = ".npy"  # ending of the files that embed writes
EXAMPLE = "a.jpg b.jpg --model backbone.onnx"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    add_model(parser)
    add_reader(parser)
    parser.add_argument(
        "first",
        metavar="A",
        help="image, such as an aligned face, the .npy file with its embedding, made by embed, or a text with --reader",
    )
    parser.add_argument("second", metavar="B", help="another image, or its embedding, or another text")
    parser.add_argument(
        "--threshold",
        type=squared_distance,
        help="squared distance below which the images are of the same class (default: the model's)",
    )
    add_json(parser)


def threshold_of(model: FaceModel | ItemModel) -> tuple[float, str] | None:
    """Returns the threshold in the model's metadata and its origin, or None.

    Raises:
        ValueError: The metadata value is not a squared distance.
    """
    metadata = model.session.get_modelmeta().custom_metadata_map
    if THRESHOLD not in metadata:
        return None
    try:
        value = squared_distance(metadata[THRESHOLD])
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"{model.name}: metadata key {THRESHOLD} {error}: give --threshold") from None
    return value, f"the model's, measured on {metadata.get(SET) or 'an unnamed set'}"


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    from partial_fc.evaluation.words import FACE_SETS, words_of
    from partial_fc.utils.distances import squared_distances

    from .index import embed_one, origin_of, read_index

    def embedding_of(name: str) -> np.ndarray:
        if args.reader or not name.endswith(EMBEDDINGS):
            return embed_one(model, items, name, recipe)[None]
        index = read_index(name)
        if len(index.names) != 1:
            raise ValueError(f"{name} holds {len(index.names)} embeddings, but compare takes one: use search --index")
        if index.origin:
            origin_of(model, recipe).check(model.name, index.origin, name)
        return index.embeddings

    model, items, recipe = open_model(args)
    metadata = model.session.get_modelmeta().custom_metadata_map
    threshold = threshold_of(model) if args.threshold is None else (args.threshold, "from --threshold")
    left, right = (embedding_of(name) for name in (args.first, args.second))
    if left.shape != right.shape:
        sizes = f"{left.shape[1]} and {right.shape[1]} numbers"
        raise ValueError(f"{args.first} and {args.second} have embeddings of {sizes}: use the same model for both")
    distance = float(squared_distances(left, right)[0])
    if args.json:
        value, origin = threshold or (None, None)
        figures = {"similarity": 1 - distance / 2, "squared_distance": distance, "threshold": value}
        say_json({**figures, "threshold_is": origin, "same": None if value is None else distance < value})
        return 0
    say(f"similarity        {1 - distance / 2:.4f}")
    say(f"squared distance  {distance:.4f}")
    if threshold is not None:
        value, origin = threshold
        # Models without the name of a set are of other programs, which train on faces.
        task = "" if args.reader else metadata.get("task", "faces")
        kinds = words_of(task, metadata.get("dataset", FACE_SETS[0])).kinds
        verdict, relation = (kinds[0], "below") if distance < value else (kinds[1], "not below")
        say(f"verdict           {verdict}: the distance is {relation} {value:g} ({origin})")
    return 0
