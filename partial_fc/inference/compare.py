"""How alike two face images are, by an ONNX model, and whether they show the same person.

Prints the cosine similarity (-1 to 1) and the squared distance of the embeddings (0 to 4). The verdict needs a
threshold of the squared distance: --threshold, or the one that the model itself carries from its verification; without
one there is none. The images must be aligned faces of the size that the model takes. As face verification has it, the
embedding of an image is the sum of its own and that of its mirror image. The exit code is 0 whatever the verdict.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, NamedTuple

from partial_fc.utils.cli import run_command, start

from .options import make_parser, recipe_of

if TYPE_CHECKING:
    from .model import FaceModel

THRESHOLD, SET = "verification_threshold", "verification_set"  # keys of the metadata of ONNX models


class Threshold(NamedTuple):
    """Of the squared distance, below which two images are of the same person; `origin`: where it comes from."""

    value: float
    origin: str


def build_parser() -> argparse.ArgumentParser:
    """The parser of `compare`."""
    parser = make_parser("compare", __doc__, "a.jpg b.jpg --model backbone.onnx")
    parser.add_argument("first", metavar="A", help="an aligned face")
    parser.add_argument("second", metavar="B", help="another")
    parser.add_argument("--threshold", type=squared_distance, help="of the squared distance (default: the model's)")
    return parser


def squared_distance(text: str) -> float:
    """A type for argparse: a squared distance of unit vectors, above 0 and at most 4."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number <= 4:
        raise argparse.ArgumentTypeError(f"must be a squared distance above 0 and at most 4, got {text!r}")
    return number


def threshold_of(model: FaceModel) -> Threshold | None:
    """What the model's metadata says. Raises ValueError if that is no squared distance."""
    metadata = model.session.get_modelmeta().custom_metadata_map
    if THRESHOLD not in metadata:
        return None
    try:
        value = squared_distance(metadata[THRESHOLD])
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"{model.name}: its metadata {THRESHOLD} {error}: give --threshold") from None
    return Threshold(value, f"the model's, measured on {metadata.get(SET) or 'a set it does not name'}")


def run(args: argparse.Namespace) -> int:
    """The command."""
    import numpy as np

    from .distances import squared_distances
    from .image_folder import read_face
    from .index import embed_faces
    from .model import FaceModel

    model = FaceModel.open(args.model)
    given = args.threshold
    threshold = threshold_of(model) if given is None else Threshold(given, "given")
    paths = [args.first, args.second]
    faces = np.stack([read_face(path, model.input.image_size, args.resize) for path in paths])
    distance = float(squared_distances(embed_faces(model, faces, paths, recipe_of(args)))[0])
    print(f"similarity        {1 - distance / 2:.4f}")
    print(f"squared distance  {distance:.4f}")
    if threshold is not None:
        same = distance < threshold.value
        words = ("same person", "below") if same else ("different persons", "not below")
        print(f"verdict           {words[0]}: the distance is {words[1]} {threshold.value:g} ({threshold.origin})")
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit code: 0, 2 for an error, 130 or 143."""
    args = build_parser().parse_args(arguments)
    return run_command(lambda: run(args))


if __name__ == "__main__":
    start(main)
