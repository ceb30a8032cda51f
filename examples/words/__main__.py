"""Writes the set of word forms, data/words, from OpenCorpora's dictionary. Does nothing if it is there.

Needs the packages of setup-utils/requirements/words.txt. Takes half a minute and 105 MB of disk.
"""

import argparse
from pathlib import Path

import numpy as np

from partial_fc.utils.cli import run_module, start

from .dictionary import dictionary_version, read_lexemes
from .lexemes import DATA, LEAST_FORMS, lexeme_set, read_set, write_files

EXAMPLE = "--root data/words"
QUICK = "ж"  # one lexeme of a hundred


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("--root", type=Path, default=DATA / "words", help="folder of the set (default: data/words)")
    parser.add_argument("--quick", action="store_true", help=f"only lexemes that begin with {QUICK}, to try it out")


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    prefix = QUICK if args.quick else ""
    words = lexeme_set(args.root, prefix, dictionary_version())
    if not words.is_current():
        words.write(lambda folder: write_files(read_lexemes(prefix), folder))
    lexemes = read_set(args.root)
    counts = np.diff(lexemes.starts)
    print(
        f"{args.root}: {len(counts):,} lexemes with {len(lexemes.letters):,} different forms, "
        f"{np.sum(counts >= LEAST_FORMS):,} with {LEAST_FORMS} or more; {lexemes.shared.mean():.1%} of the forms "
        "are of several lexemes"
    )
    return 0


if __name__ == "__main__":
    start(lambda: run_module("examples.words.__main__", "python -m examples.words"))
