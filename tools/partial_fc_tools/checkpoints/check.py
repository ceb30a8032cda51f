"""Verifies a checkpoint, or all checkpoints in a folder, byte by byte. The exit code is 1 if one is damaged."""

import argparse
import os

from partial_fc.checkpoint.arrays import read_arrays
from partial_fc.checkpoint.class_centers import SavedClasses
from partial_fc.checkpoint.manager import steps_at
from partial_fc.checkpoint.verify import verify_share
from partial_fc.utils.text import say

EXAMPLE = "models/small-arcface-demo/checkpoints"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("path", metavar="PATH", help="a checkpoint, or a folder of checkpoints")


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    return check(args.path)


def check(path: str) -> int:
    """Prints the state of each checkpoint; returns 1 if one is damaged, else 0."""
    code = 0
    for step in steps_at(path):
        try:
            manifest = verify_share(step, 0, 1, report_progress=lambda: None)
            for name in manifest.files:
                if name.endswith(".npz"):
                    read_arrays(os.path.join(step, name))
            for head in ("", *manifest.heads):
                SavedClasses.of_checkpoint(step, manifest, head)
            say(f"{step}: undamaged, all files verified")
        except (OSError, ValueError) as error:
            code = 1
            say(f"{step}: {error}")
    return code
