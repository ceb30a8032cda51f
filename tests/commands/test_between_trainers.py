"""A checkpoint of one trainer resumes in the other, with the same losses, and returns without a changed bit."""

import re

import numpy as np
import pytest
from conftest import IN_TURN, needs_torch
from groups import LAUNCH, TWO_RANKS, checkpoint_contents

from partial_fc.checkpoint import CheckpointFolder, read_arrays
from partial_fc.checkpoint.layout import statistics_file

pytestmark = [pytest.mark.slow, needs_torch]

# Trainer -> number of ranks -> command.
COMMANDS = {
    "mxnet": {1: ["bash", "config.sh"], 2: [*LAUNCH["mpi"], "bash", "config.sh"]},
    "torch": {1: [*IN_TURN, "1", "train"], 2: TWO_RANKS},
}
LOSS = re.compile(r"Loss (\d+\.\d{4})   Epoch: \d+   Global Step: (\d+) ")
SAVED = 4  # update of the checkpoint


@pytest.fixture
def train(succeed, settings, tmp_path):
    def train_until(update, trainer, ranks, name, *more):
        """Returns the oldest checkpoint of a training, and the loss of each update."""
        arguments = ["sample_ratio=0.5", "frequent=1", f"output={tmp_path / name}", f"max_update={update}"]
        arguments += ["save_every=100", f"checkpoint_every={SAVED}", "checkpoints_kept=2"]
        succeed(*COMMANDS[trainer][ranks], *settings, *arguments, *more)
        (*_, (_, path)) = CheckpointFolder(str(tmp_path / name / "checkpoints"), 2).complete()
        log = (tmp_path / name / "training.log").read_text()
        return path, {int(step): float(loss) for loss, step in LOSS.findall(log)}

    return train_until


def contents(path):
    """Returns every array of a checkpoint by name, including each rank's statistics, and its manifest."""
    arrays, manifest = checkpoint_contents(path)
    for rank in range(manifest.ranks):
        statistics = read_arrays(f"{path}/{statistics_file(rank)}")
        arrays.update({f"rank {rank} {name}": array for name, array in statistics.items()})
    return arrays, manifest


@pytest.mark.parametrize("first, second, ranks", [("mxnet", "torch", 2), ("torch", "mxnet", 1)])
def test_a_training_goes_on_in_the_other_trainer(first, second, ranks, train, tmp_path):
    saved, expected = train(SAVED + 3, first, ranks, "first")
    arrays, manifest = contents(saved)
    assert arrays["weight_mom"].any()

    # There and back without a step.
    there, _ = train(SAVED, second, ranks, "there", "--resume", saved)
    back, _ = train(SAVED, first, ranks, "back", "--resume", there)
    returned_arrays, returned_manifest = contents(back)
    assert returned_arrays.keys() == arrays.keys()
    for name, array in arrays.items():
        if array.dtype == np.float32:
            np.testing.assert_array_equal(returned_arrays[name], array, err_msg=name)
    assert returned_manifest.rank_states == manifest.rank_states
    for key in ("data", "conventions", "num_update"):
        assert returned_manifest.state[key] == manifest.state[key]
    # The momentum has the first trainer's convention, so only that trainer writes it in its own format.
    momentum = ("*_softmax_weight_mom.pt", "*_centers_mom.param")
    assert not any(list((tmp_path / "there").glob(pattern)) for pattern in momentum)
    assert any(list((tmp_path / "back").glob(pattern)) for pattern in momentum)

    # The learning rate changes after update 5, where the wrong momentum convention would change the losses.
    _, losses = train(SAVED + 3, second, ranks, "second", "--resume", there)
    assert losses.keys() == {5, 6, 7}
    for step, bound in ((5, 1e-4), (6, 1e-3), (7, 1e-3)):
        assert abs(losses[step] - expected[step]) < bound + 5e-5, (step, losses, expected)
