"""Writes a set of synthetic speakers to data/speakers, unless it exists. Needs espeak-ng and kaldi-native-fbank."""

import argparse
from functools import partial
from pathlib import Path

from partial_fc.utils.cli import run_module, start, whole_number
from partial_fc.utils.cores import usable_cores

from .recordings import DATA, PARTS, read_part, speaker_set, write_files

EXAMPLE = "--speakers 400 --unseen 100"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("--root", type=Path, default=DATA / "speakers", help="folder of the set (data/speakers)")
    for name, default, text in (
        ("speakers", 400, "speakers to train on"),
        ("unseen", 100, "other speakers, for trials"),
        ("utterances", 15, "utterances of each speaker"),
    ):
        parser.add_argument(f"--{name}", type=whole_number(2), default=default, help=f"{text} (default: {default})")
    parser.add_argument("--seed", type=whole_number(0), default=0, help="seed of all draws (default: 0)")


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    sizes = args.speakers, args.unseen, args.utterances, args.seed
    speakers = speaker_set(args.root, *sizes)
    if not speakers.is_current():
        speakers.write(partial(write_files, *sizes, usable_cores()))
    for part in PARTS:
        recordings = read_part(args.root, part)
        seconds = recordings.lengths / 100
        print(
            f"{args.root}, {part}: {recordings.speakers[-1] + 1:,} speakers, {len(seconds):,} utterances of "
            f"{seconds.min():.1f} to {seconds.max():.1f} s, {seconds.sum() / 3600:.1f} hours"
        )
    return 0


if __name__ == "__main__":
    start(lambda: run_module("examples.speakers.__main__", "python -m examples.speakers"))
