"""Computes the embeddings of all face images in a folder and its subfolders with an ONNX model.

Writes OUT.npy, the embeddings (N, E) float32 of length 1, and OUT.txt, the image names relative to the folder, sorted,
one per line. The images must be aligned faces of the model's input size. As in face verification, the embedding of an
image is the sum of the embeddings of the image and its mirror image, unless the model was trained with
rand_mirror=False. Unusable images are reported and skipped; the exit code is then 1.
"""

import argparse
import os

from partial_fc.utils.cli import add_force, whole_number

from .options import add_model, recipe_of, report_skipped

EXAMPLE = "images/ --model backbone.onnx --out embeddings"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    add_model(parser)
    parser.add_argument("images", metavar="IMAGES", help="folder of aligned faces")
    parser.add_argument("--out", default="embeddings", help="output path without extension (default: embeddings)")
    parser.add_argument("--batch-size", type=whole_number(1), default=32, help="images per batch (default: 32)")
    add_force(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    from partial_fc.utils.progress import progress
    from partial_fc.utils.staging import staged_files
    from partial_fc.utils.text import plural

    from .image_folder import face_names
    from .index import embed_files, index_paths, write_index
    from .model import FaceModel

    array, text = index_paths(args.out)
    files = [os.path.basename(array), os.path.basename(text)]
    with staged_files(os.path.dirname(array), files, args.force) as stage:
        names = face_names(args.images)
        model = FaceModel.open(args.model)
        recipe = recipe_of(args, model)
        with progress(len(names), "image", "embedding") as bar:
            index, skipped = embed_files(model, args.images, names, recipe, bar.update)
        write_index(os.path.join(stage, files[0]), index)
    count, dimension = index.embeddings.shape
    flip = "with" if recipe.mirrored else "without"
    print(
        f"{array}: {plural(count, 'embedding')} of dimension {dimension} and length 1, {flip} mirror images; "
        f"{text}: names of the images"
    )
    return report_skipped(skipped)
