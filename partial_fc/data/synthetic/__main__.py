"""Writes the demo set of drawn faces; `partial-fc sets sheet` shows them."""

from __future__ import annotations

import argparse
from pathlib import Path

from tqdm import tqdm

from partial_fc.utils.cli import run_command, start

from .dataset import IDENTITIES, IMAGES_PER_IDENTITY, SEED, ensure_demo


def main() -> int:
    """Runs the command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m partial_fc.data.synthetic", description=__doc__)
    parser.add_argument("root", type=Path, help="folder of the data set")
    parser.add_argument("--seed", type=int, default=SEED, help=f"seed of the faces (default: {SEED})")
    parser.add_argument("--identities", type=int, default=IDENTITIES, help=f"default: {IDENTITIES}")
    parser.add_argument(
        "--images-per-identity", type=int, default=IMAGES_PER_IDENTITY, help=f"default: {IMAGES_PER_IDENTITY}"
    )
    parser.add_argument("--workers", type=int, default=None, help="number of processes (default: one per core)")
    args = parser.parse_args()
    return run_command(lambda: run(args))


def run(args: argparse.Namespace) -> int:
    """Writes the set."""
    with tqdm(unit="image", disable=None, desc="drawing faces") as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        ensure_demo(
            args.root,
            seed=args.seed,
            identities=args.identities,
            images_per_identity=args.images_per_identity,
            workers=args.workers,
            progress=progress,
        )
    print(args.root)
    return 0


if __name__ == "__main__":
    start(main)
