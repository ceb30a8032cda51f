"""Downloads the typefaces and writes the set of characters to data/glyphs, unless it exists.

Needs apt-get and dpkg-deb (Debian, Ubuntu), but not root; downloads 800 MB, takes 3 GB of disk and a few minutes.
"""

import argparse
from pathlib import Path

from partial_fc.utils.cli import add_seed, add_workers, run_module, start, whole_number

from .dataset import DATA, Size, add_folders, glyph_set, write_files
from .library import packages, read_library

EXAMPLE = "--classes 1000 --unseen 100"
NUMBERS = {
    "classes": "characters to train on",
    "unseen": "unseen characters for verification",
    "images": "images per character to train on",
    "unseen_images": "maximum number of images per unseen character and kind of typefaces",
    "pairs": "pairs per validation set",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    add_folders(parser)
    parser.add_argument(
        "--fonts", type=Path, default=DATA / "fonts", help="folder of the typefaces (default: data/fonts)"
    )
    for name, text in NUMBERS.items():
        default, option = getattr(Size(), name), f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=whole_number(1), default=default, help=f"{text} (default: {default})")
    parser.add_argument("--packages", nargs="+", metavar="NAME", help="packages in packages.txt (default: all)")
    add_seed(parser)
    add_workers(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    size = Size(args.seed, **{name: getattr(args, name) for name in NUMBERS})
    wanted = packages(args.packages)
    glyphs = glyph_set(args.root, wanted, size)
    if not glyphs.is_current():
        glyphs.write(
            lambda folder: write_files(read_library(args.fonts, args.workers, wanted), size, args.workers, folder)
        )
    print(args.root)
    return 0


if __name__ == "__main__":
    start(lambda: run_module("examples.glyphs.__main__", "python -m examples.glyphs"))
