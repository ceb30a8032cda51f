"""Computes the embeddings of all images in a folder and its subfolders with an ONNX model.

Writes OUT.npy, the embeddings (N, E) float32 of length 1; OUT.txt, the sorted image names relative to the folder, one
per line, or with --reader the lines of a text file; and OUT.json, which identifies the model. The images must have
the model's input size; faces must be aligned. As in face verification, the embedding of an image is the sum of the
embeddings of the image and its mirror image, unless the model was trained with rand_mirror=False. Unusable images are
reported and skipped; the exit code is then 1.
"""

import argparse
import os

from partial_fc.utils.cli import add_follow_links, add_force, whole_number
from partial_fc.utils.text import say

from .options import add_model, add_reader, open_model, report_skipped

EXAMPLE = "images/ --model backbone.onnx --out embeddings"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    add_model(parser)
    add_reader(parser)
    add_follow_links(parser)
    parser.add_argument("images", metavar="IMAGES", help="folder of images, or a text file with --reader")
    parser.add_argument("--out", default="embeddings", help="output path without extension (default: embeddings)")
    parser.add_argument("--batch-size", type=whole_number(1), default=32, help="images per batch (default: 32)")
    add_force(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    from partial_fc.utils.progress import progress
    from partial_fc.utils.staging import staged_files
    from partial_fc.utils.text import plural

    from .index import embed_all, index_paths, origin_of, write_index

    array, text, about = index_paths(args.out)
    files = [os.path.basename(path) for path in (array, text, about)]
    with staged_files(os.path.dirname(array), files, args.force) as stage:
        model, items, recipe = open_model(args)
        names, others = items.names(args.images)
        with progress(len(names), items.noun, "embedding") as bar:
            index, skipped = embed_all(model, items, args.images, names, recipe, bar.update)
        write_index(os.path.join(stage, files[0]), index, origin_of(model, recipe))
    count, dimension = index.embeddings.shape
    flip = "" if args.reader else f", {'with' if recipe.mirrored else 'without'} mirror images"
    say(
        f"{array}: {plural(count, 'embedding')} of dimension {dimension} and length 1{flip}; "
        f"{text}: names of the {items.noun}s"
    )
    return report_skipped(skipped, others)
