"""Writes the demo set of synthetic faces; `partial-fc sets sheet` shows them."""

import argparse
from pathlib import Path

from partial_fc.utils.cli import add_workers, run_module, start
from partial_fc.utils.text import say

from .dataset import DEMO, write_demo

EXAMPLE = "data/drawn --identities 100 --images-per-identity 10"
SIZES = ("seed", "identities", "images_per_identity", "pairs")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("root", type=Path, help="folder of the set")
    for name in SIZES:
        default = getattr(DEMO, name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default, help=f"default: {default}")
    add_workers(parser)


def run(args: argparse.Namespace) -> int:
    """Writes the set."""
    size = DEMO._replace(**{name: getattr(args, name) for name in SIZES})
    write_demo(args.root, size, args.workers)
    say(args.root)
    return 0


if __name__ == "__main__":
    start(lambda: run_module("partial_fc.data.synthetic.__main__", "python -m partial_fc.data.synthetic"))
