"""Arguments that several subcommands share."""

from __future__ import annotations

import argparse

from partial_fc.data.encoding import ImageOptions
from partial_fc.utils.process_pool import usable_cores


def whole_number(lowest: int, highest: int | None = None):
    """A type for argparse: a whole number within bounds."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = lowest - 1
        if number < lowest or (highest is not None and number > highest):
            bounds = f"{lowest} or more" if highest is None else f"from {lowest} to {highest}"
            raise argparse.ArgumentTypeError(f"must be a whole number {bounds}, got {text!r}")
        return number

    return parse


def add_image_options(parser: argparse.ArgumentParser) -> None:
    """How image files become the images of a set."""
    parser.add_argument("--size", type=whole_number(1), default=112, help="height and width (default: 112)")
    parser.add_argument("--resize", action="store_true", help="scale images of another size instead of refusing them")
    parser.add_argument(
        "--quality", type=whole_number(1, 100), default=95, help="of JPEGs that are written anew (default: 95)"
    )
    parser.add_argument(
        "--format", choices=("jpeg", "png"), default="jpeg", help="of images that are written anew (default: jpeg)"
    )


def image_options(args: argparse.Namespace) -> ImageOptions:
    """The ImageOptions of parsed arguments."""
    return ImageOptions(args.size, args.resize, args.quality, args.format)


def add_workers(parser: argparse.ArgumentParser) -> None:
    """How many processes share the work."""
    parser.add_argument(
        "--workers", type=whole_number(1), default=usable_cores(), metavar="N", help="processes (default: one a core)"
    )


def add_force(parser: argparse.ArgumentParser) -> None:
    """Whether results may replace what is there."""
    parser.add_argument("--force", action="store_true", help="replace what is there already")


def add_seed(parser: argparse.ArgumentParser) -> None:
    """What random choices start from."""
    parser.add_argument("--seed", type=whole_number(0), default=0, help="of the random choice (default: 0)")


def label_range(text: str) -> tuple[int, int]:
    """A type for argparse: "A:B" -> (A, B), the labels from A to B - 1."""
    first, colon, last = text.partition(":")
    if not colon or not first.isdigit() or not last.isdigit() or int(first) >= int(last):
        raise argparse.ArgumentTypeError(f"must be A:B, the labels from A to B - 1, got {text!r}")
    return int(first), int(last)
