"""Results of a made-up training, for the tests of reports and logs."""

import numpy as np

from partial_fc.data.pairs_bin import write_pairs
from partial_fc.evaluation.verification import VerificationPoint
from partial_fc.evaluation.words import FACES
from partial_fc.training.results import LossPoint, SetResult, TrainingResult
from partial_fc.training.tasks.faces import FacePairs
from partial_fc.training.tasks.pairs import PairFigures, PairShare

SETTINGS = dict(
    task="faces",
    data_name="demo",
    rec="",
    dataset="demo",
    network="r50",
    loss="arcface",
    batch_size=8,
    sample_ratio=0.1,
    max_update=32000,
    wd=5e-4,
)
ISSAME = np.arange(40) % 2 == 0
DISTANCE = np.random.default_rng(2).uniform(0, 3, 40) + ~ISSAME
JPEG, PNG = b"\xff\xd8\xff\xe0 jpeg", b"\x89PNG\r\n\x1a\n png"


def point(update, accuracy=0.9, threshold=1.2):
    figures = (accuracy, 0.0125, threshold, 0.876, 0.001, 21.5, 14.25, 0.953)
    return VerificationPoint(update, *figures, seconds=0.75, measured_far=0.00067, tar_interpolated=0.881)


TWO_POINTS = (point(500, 0.95), point(1000, 0.9))


def a_set(folder=None, points=TWO_POINTS, distance=DISTANCE, issame=ISSAME, images=(JPEG, PNG), problems=()):
    """Returns the results on a set; ``folder`` gets the set's file, which repeats ``images``."""
    if folder is not None:
        write_pairs(folder / "set.bin", [images[i % len(images)] for i in range(2 * len(issame))], issame)
    evaluation = FacePairs(f"{folder}/set.bin", 112, kinds=FACES.kinds)
    evaluation.share = PairShare(issame, 2 * len(issame), lambda start, stop: None)
    evaluation.last = PairFigures(distance, issame, 21.5, 0.953)
    return SetResult(evaluation, list(points), list(problems))


def log_lines(losses=(3.0,), updates=range(20, 2001, 20), waiting=0.0561):
    return [LossPoint(update, losses[i % len(losses)], 1600.0, waiting, 0.1) for i, update in enumerate(updates)]


def a_training(**changes):
    """Returns the results of a training of 2 ranks without validation sets."""
    training = TrainingResult(
        folder="models/a training",
        settings=SETTINGS,
        ranks=2,
        updates=32000,
        seconds=7384.2,
        training_seconds=20.0,
        losses=log_lines(),
        waiting=0.0561,
        sets={},
        suggestion="start again with lr=0.1",
        baselines={},
        skipped=0,
        missing=[],
        versions={"mxnet": "1.9.1"},
    )
    return training._replace(**changes)
