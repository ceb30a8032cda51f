"""Embeddings of all face images in a folder and those below it, by an ONNX model.

Writes OUT.npy, the embeddings (N, E) float32, each of length 1, and OUT.txt, the name of each image, one a line,
sorted, relative to the folder. The images must be aligned faces of the size that the model takes. As face verification
has it, the embedding of an image is the sum of its own and that of its mirror image. Images that cannot be used are
named and skipped; the exit code is then 1.
"""

from __future__ import annotations

import argparse

from partial_fc.utils.cli import run_command, start

from .options import make_parser, recipe_of, tell_skipped


def build_parser() -> argparse.ArgumentParser:
    """The parser of `embed`."""
    from partial_fc.data.tools.options import add_force, whole_number

    parser = make_parser("embed", __doc__, "images/ --model backbone.onnx --out embeddings")
    parser.add_argument("images", metavar="IMAGES", help="folder of aligned faces")
    parser.add_argument("--out", default="embeddings", help="the files written, without ending (default: embeddings)")
    parser.add_argument("--batch-size", type=whole_number(1), default=32, help="images at a time (default: 32)")
    add_force(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """The command."""
    from partial_fc.utils.staging import plural, progress

    from .image_folder import face_names
    from .index import Index, embed_files, index_paths, write_index
    from .model import FaceModel

    skipped: list[str] = []

    def make() -> Index:
        names = face_names(args.images)
        model = FaceModel.open(args.model)
        with progress(len(names), "image", "embedding") as bar:
            index, unusable = embed_files(model, args.images, names, recipe_of(args), bar.update)
        skipped.extend(unusable)
        return index

    embeddings, _ = write_index(args.out, make, args.force)
    array, text = index_paths(args.out)
    how = "alone" if args.no_flip else "plus its mirror image"
    print(
        f"{array}: {plural(len(embeddings), 'embedding')} of {embeddings.shape[1]} numbers, each of an image {how}, "
        f"scaled to length 1; {text}: the names"
    )
    return tell_skipped(skipped)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit code: 0, 1 where images were skipped, 2 for an error, 130 or 143."""
    args = build_parser().parse_args(arguments)
    return run_command(lambda: run(args))


if __name__ == "__main__":
    start(main)
