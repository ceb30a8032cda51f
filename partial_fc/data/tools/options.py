"""Options that several subcommands share."""

from __future__ import annotations

import argparse

from partial_fc.data.encoding import ImageOptions
from partial_fc.utils.cli import whole_number


def add_image_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of encoding image files."""
    parser.add_argument("--size", type=whole_number(1), default=112, help="height and width in pixels (default: 112)")
    parser.add_argument("--resize", action="store_true", help="scale images of another size instead of refusing them")
    parser.add_argument(
        "--quality", type=whole_number(1, 100), default=95, help="JPEG quality of encoded images (default: 95)"
    )
    parser.add_argument(
        "--format", choices=("jpeg", "png"), default="jpeg", help="format of encoded images (default: jpeg)"
    )


def image_options(args: argparse.Namespace) -> ImageOptions:
    """Returns the ImageOptions of parsed arguments."""
    return ImageOptions(args.size, args.resize, args.quality, args.format)


def label_range(text: str) -> tuple[int, int]:
    """An argparse type: "A:B" -> (A, B), the labels from A to B - 1."""
    first, colon, last = text.partition(":")
    if not colon or not first.isdigit() or not last.isdigit() or int(first) >= int(last):
        raise argparse.ArgumentTypeError(f"must be A:B, the labels from A to B - 1, got {text!r}")
    return int(first), int(last)
