"""Lists the complete checkpoints in a folder, newest first: updates, classes, ranks, size, time."""

import argparse

from partial_fc.checkpoint.manager import steps_at
from partial_fc.checkpoint.manifest import read_manifest
from partial_fc.utils.text import say

EXAMPLE = "models/small-arcface-demo/checkpoints"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("folder", metavar="FOLDER", help="folder of checkpoints")


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    for step in steps_at(args.folder):
        try:
            manifest = read_manifest(step)
        except (OSError, ValueError) as error:
            say(f"{step}: {error}")
            continue
        size = sum(entry.bytes for entry in manifest.files.values())
        say(
            f"{step}: update {manifest.num_update}, {manifest.num_classes} classes of {manifest.ranks} ranks, "
            f"{size / 1e6:.1f} MB, {manifest.origin.get('time', '')}"
        )
    return 0
