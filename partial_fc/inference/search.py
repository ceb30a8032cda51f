"""Which face images of a folder, or of an index made by embed, are most like a query, by an ONNX model.

Prints a table: rank, cosine similarity (-1 to 1), name. The images must be aligned faces of the size that the model
takes. As face verification has it, the embedding of an image is the sum of its own and that of its mirror image. An
index must be made by the same model, with the same --no-flip. Images that cannot be used are named and skipped; the
exit code is then 1.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from partial_fc.utils.cli import run_command, start

from .options import make_parser, recipe_of, tell_skipped

if TYPE_CHECKING:
    import numpy as np

    from .index import Index
    from .model import FaceModel


def build_parser() -> argparse.ArgumentParser:
    """The parser of `search`."""
    from partial_fc.data.tools.options import whole_number

    parser = make_parser("search", __doc__, "query.jpg images/ --model backbone.onnx --top 10")
    parser.add_argument("query", metavar="QUERY", help="an aligned face")
    parser.add_argument("images", metavar="IMAGES", nargs="?", help="folder of aligned faces")
    parser.add_argument("--index", help="embeddings made by python -m partial_fc.inference.embed, instead of a folder")
    parser.add_argument("--top", type=whole_number(1), default=10, help="how many are shown (default: 10)")
    parser.add_argument("--batch-size", type=whole_number(1), default=32, help="images at a time (default: 32)")
    return parser


def most_similar(index: Index, query: np.ndarray, top: int) -> list[tuple[float, str]]:
    """(cosine similarity, name) of the `top` embeddings nearest to `query` (E,), of length 1; of equals by name."""
    similarities = index.embeddings @ query
    order = (-similarities).argsort(kind="stable")[:top]
    return [(float(similarities[row]), index.names[row]) for row in order]


def index_of(args: argparse.Namespace, model: FaceModel) -> tuple[Index, list[str]]:
    """What is searched, and what is wrong with images that are skipped."""
    from partial_fc.utils.staging import progress

    from .image_folder import face_names
    from .index import embed_files, read_index

    if args.index is not None:
        return read_index(args.index), []
    names = face_names(args.images)
    with progress(len(names), "image", "embedding") as bar:
        return embed_files(model, args.images, names, recipe_of(args), bar.update)


def run(args: argparse.Namespace) -> int:
    """The command."""
    from .image_folder import read_face
    from .index import embed_faces
    from .model import FaceModel

    model = FaceModel.open(args.model)
    face = read_face(args.query, model.input.image_size, args.resize)
    query = embed_faces(model, face[None], [args.query], recipe_of(args))[0]
    index, skipped = index_of(args, model)
    if index.embeddings.shape[1] != len(query):
        raise ValueError(
            f"{args.index} holds embeddings of {index.embeddings.shape[1]} numbers, {model.name} gives {len(query)}: "
            "make the index with the same model"
        )
    print("rank  similarity  name")
    for rank, (similarity, name) in enumerate(most_similar(index, query, args.top), 1):
        print(f"{rank:4}  {similarity:10.4f}  {name}")
    return tell_skipped(skipped)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit code: 0, 1 where images were skipped, 2 for an error, 130 or 143."""
    parser = build_parser()
    args = parser.parse_intermixed_args(arguments)  # else IMAGES could not stand behind an option
    if (args.images is None) == (args.index is None):
        parser.error("give a folder of IMAGES or an --index to search in, one of the two")
    return run_command(lambda: run(args))


if __name__ == "__main__":
    start(main)
