"""What the commands embed, compare and search share: their arguments, and how they tell of images they skip."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # loaded when a command runs: --help is there at once, and Ctrl-C meanwhile is no traceback
    from .index import Recipe


def make_parser(program: str, text: str | None, example: str) -> argparse.ArgumentParser:
    """A parser with the arguments of all three."""
    parser = argparse.ArgumentParser(
        prog=f"python -m partial_fc.{program}",
        description=text,
        epilog=f"example:\n  python -m partial_fc.{program} {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", required=True, help="an .onnx file or its folder, or what MXNet has saved")
    parser.add_argument("--no-flip", action="store_true", help="do not add the embedding of the mirror image")
    parser.add_argument("--resize", action="store_true", help="scale images of another size instead of refusing them")
    return parser


def recipe_of(args: argparse.Namespace) -> Recipe:
    """The Recipe of parsed arguments."""
    from .index import Recipe

    return Recipe(not args.no_flip, args.resize, getattr(args, "batch_size", 1))


def tell_skipped(skipped: list[str]) -> int:
    """Name the images that were skipped; returns the exit code, 1 where there are any."""
    for text in skipped:
        print(f"skipped: {text}", file=sys.stderr)
    return 1 if skipped else 0
