"""Fetches the typefaces and writes the set of characters, data/glyphs. Does nothing if it is there.

Needs apt-get and dpkg-deb (Debian, Ubuntu), but not root: 800 MB to fetch, 3 GB of disk, and a few minutes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from partial_fc.utils.cli import add_workers, run_command, start, whole_number
from partial_fc.utils.progress import progress

from .dataset import Size, is_current, write_glyphs
from .fetch import packages
from .library import read_library

DATA = Path(__file__).resolve().parents[2] / "data"


def build_parser() -> argparse.ArgumentParser:
    """Returns the argument parser."""
    parser = argparse.ArgumentParser(prog="python -m examples.glyphs", description=__doc__)
    size = Size()
    parser.add_argument("--root", type=Path, default=DATA / "glyphs", help="folder of the set (default: data/glyphs)")
    parser.add_argument("--fonts", type=Path, default=DATA / "fonts", help="of the typefaces (default: data/fonts)")
    for name, text in (
        ("classes", "characters to train on"),
        ("unseen", "characters to verify with"),
        ("images", "of each character to train on"),
        ("unseen-images", "at most, of each character to verify with, in each kind of typefaces"),
        ("pairs", "of each of the two validation sets"),
    ):
        default = getattr(size, name.replace("-", "_"))
        parser.add_argument(f"--{name}", type=whole_number(1), default=default, help=f"{text} (default: {default})")
    parser.add_argument("--packages", nargs="+", metavar="NAME", help="only these of packages.txt (default: all)")
    parser.add_argument("--seed", type=whole_number(0), default=0)
    add_workers(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    size = Size(args.classes, args.unseen, args.images, args.unseen_images, args.pairs)
    wanted = packages(args.packages)
    if not is_current(args.root, wanted, size, args.seed):
        library = read_library(args.fonts, args.workers, wanted)
        with progress(size.classes * size.images, "image", "drawing") as bar:
            write_glyphs(args.root, wanted, library, size, args.seed, args.workers, bar)
    print(args.root)
    return 0


def main() -> int:
    """Runs the command; returns the exit code."""
    args = build_parser().parse_args()
    return run_command(lambda: run(args))


if __name__ == "__main__":
    start(main)
