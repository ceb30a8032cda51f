"""Arguments and messages shared by the commands embed, compare and search."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # onnxruntime loads only when a command runs, so that --help is fast
    from .index import Recipe
    from .model import FaceModel


def add_model(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that all three have."""
    parser.add_argument(
        "--model", required=True, help="an .onnx file, a folder with one, an MXNet checkpoint, or a .pt or .pth"
    )
    parser.add_argument("--no-flip", action="store_true", help="do not add the embedding of the mirror image")
    parser.add_argument("--resize", action="store_true", help="scale images of another size instead of refusing them")


def recipe_of(args: argparse.Namespace, model: FaceModel) -> Recipe:
    """Returns the Recipe of parsed arguments for a model."""
    from .index import Recipe

    return Recipe(model.mirrored and not args.no_flip, args.resize, getattr(args, "batch_size", 1))


def report_skipped(skipped: list[str]) -> int:
    """Prints a message for each skipped image; returns the exit code: 1 if there are any."""
    for message in skipped:
        print(f"skipped: {message}", file=sys.stderr)
    return 1 if skipped else 0
