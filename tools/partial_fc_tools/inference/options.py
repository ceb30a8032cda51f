"""Arguments and messages shared by the commands embed, compare and search."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from partial_fc.utils.text import remark, say

if TYPE_CHECKING:  # onnxruntime loads only when a command runs, so that --help is fast
    from partial_fc.export.item_model import ItemModel
    from partial_fc.export.model import FaceModel

    from .index import Recipe
    from .items import Images, Texts


def add_model(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments for a face model."""
    parser.add_argument(
        "--model",
        required=True,
        help="an .onnx or .safetensors file, a folder with one, an MXNet checkpoint, or a .pt, .pth or .ckpt",
    )
    parser.add_argument("--no-flip", action="store_true", help="do not add the embedding of the mirror image")
    parser.add_argument("--resize", action="store_true", help="scale images of another size instead of refusing them")


def add_reader(parser: argparse.ArgumentParser) -> None:
    """Adds the option for items other than images."""
    parser.add_argument(
        "--reader",
        metavar="package.module:function",
        help="function that makes the model's input from a text, for a model of items other than images; give a text "
        "file with one item per line instead of a folder of images, and a text instead of an image",
    )


def recipe_of(args: argparse.Namespace, model: FaceModel) -> Recipe:
    """Returns the Recipe that the parsed arguments give for a model."""
    from .index import Recipe

    return Recipe(model.mirrored and not args.no_flip, args.resize, getattr(args, "batch_size", 1))


def open_model(args: argparse.Namespace) -> tuple[FaceModel | ItemModel, Images | Texts, Recipe]:
    """Returns the model of the parsed arguments, the reader of its items, and the Recipe.

    Raises:
        OSError, ValueError: The model cannot be used, the reader does not exist, or an option does not go with it.
    """
    from partial_fc.export.item_model import ItemModel
    from partial_fc.export.model import FaceModel

    from .index import Recipe
    from .items import Images, Texts

    if args.reader:
        if args.no_flip or args.resize:
            raise ValueError("--no-flip and --resize are for images: leave them out with --reader")
        texts = Texts.of(args.reader)
        return ItemModel.open(args.model), texts, Recipe(mirrored=False, batch_size=getattr(args, "batch_size", 1))
    model = FaceModel.open(args.model)
    return model, Images(model.input.image_size, args.resize), recipe_of(args, model)


def report_skipped(skipped: list[str], others: list[str]) -> int:
    """Prints a message for each skipped item, and for other files; returns the exit code, 1 if items were skipped."""
    from partial_fc.data.folder import others_text

    if others:
        remark(others_text(others))
    for message in skipped:
        say(f"skipped: {message}", sys.stderr)
    return 1 if skipped else 0
