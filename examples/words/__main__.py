"""Writes the set of word forms from OpenCorpora's dictionary to data/words, unless it exists.

Needs the packages in setup-utils/requirements/words.txt, half a minute, and 105 MB of disk.
"""

import argparse
from pathlib import Path

import numpy as np

from partial_fc.utils.cli import run_module, start

from .dictionary import dictionary_version, read_lexemes
from .lexemes import DATA, LEAST_FORMS, lexeme_set, read_set, write_files

EXAMPLE = "--root data/words"
QUICK = "ж"  # a hundredth of the lexemes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("--root", type=Path, default=DATA / "words", help="folder of the set (default: data/words)")
    parser.add_argument("--quick", action="store_true", help=f"use only lexemes that begin with {QUICK}, for a test")


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
