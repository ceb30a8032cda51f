"""Compares models with mean filter banks on all pairs of utterances of unseen speakers.

Three kinds of scores: cosines; cosines after the mean of the training speakers is subtracted; and the latter with
AS-norm, with the mean embeddings of the training speakers as the cohort. minDCF has a genuine probability of 0.01.
"""

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

from partial_fc.utils.cli import run_module, start
from partial_fc.utils.distances import normalized
from partial_fc.utils.progress import progress
from partial_fc.utils.tables import markdown_table
from partial_fc_torch import from_pretrained

from .recordings import DATA, PARTS, Recordings, read_part
from .scores import figures

EXAMPLE = "models/speakers models/speakers-large-margin"
BATCH = 32


@torch.inference_mode()
def embed(network: torch.nn.Module, recordings: Recordings) -> np.ndarray:
    """Returns the embeddings (N, E) float32 of whole utterances."""
    order = np.argsort(recordings.lengths, kind="stable")
    rows = np.array_split(order, -(-len(order) // BATCH))
    parts = []
    with progress(len(rows), "batch", "embedding") as bar:
        for batch in rows:
            inputs = {name: torch.from_numpy(array) for name, array in recordings.read(batch).items()}
            parts.append(network(inputs).numpy())
            bar.update(1)
    return np.concatenate(parts)[order.argsort()]


def figures_of(
    represent: Callable[[Recordings], np.ndarray], trained: Recordings, unseen: Recordings
) -> dict[str, dict[str, float]]:
    """Returns EER and minDCF by kind of scores; ``represent`` returns the embeddings (N, E) of a part."""
    _, starts, counts = np.unique(trained.speakers, return_index=True, return_counts=True)
    means = np.add.reduceat(normalized(represent(trained)), starts) / counts[:, None]
    rows, center = normalized(represent(unseen)), means.mean(axis=0)
    centered, cohort = normalized(rows - center), normalized(means - center)
    return {
        "cosine": figures(rows, unseen.speakers),
        "mean subtracted": figures(centered, unseen.speakers),
        "AS-norm": figures(centered, unseen.speakers, cohort),
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("models", type=Path, nargs="*", help="folders of trainings")
    parser.add_argument("--root", type=Path, default=DATA / "speakers", help="folder of the set (data/speakers)")
    parser.add_argument("--out", type=Path, help="also write the figures to this JSON file")


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    trained, unseen = (read_part(args.root, part) for part in PARTS)
    results = {"mean filter banks": figures_of(Recordings.means, trained, unseen)}
    for path in args.models:
        represent = partial(embed, from_pretrained(path, trust_code=True))
        results[str(path)] = figures_of(represent, trained, unseen)
    rows = [
        [name, scores, f"{100 * each['eer']:.2f}", f"{each['min_dcf']:.3f}"]
        for name, by_scores in results.items()
        for scores, each in by_scores.items()
    ]
    print("\n".join(markdown_table(["model", "scores", "EER, %", "minDCF"], rows)))
    if args.out:
        args.out.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    start(lambda: run_module("examples.speakers.evaluate", "python -m examples.speakers.evaluate"))
