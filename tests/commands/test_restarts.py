"""run.sh starts a training that has failed again, from the newest checkpoint of this very run."""

import json
import os
import re
import signal

import pytest
from groups import checkpoints_in, ranks_with, started, wait_until

LIMIT = 60  # seconds


@pytest.fixture
def words(settings):
    """Words for a training of some seconds."""
    often = ["max_update=50", "checkpoint_every=5", "verify_every=1000", "save_every=1000", "baselines=False"]
    return [*settings, *often, "embedding_size=32", "frequent=10"]


def test_a_killed_training_is_finished_by_its_restarts(words, tmp_path):
    models = tmp_path / "models"
    # An earlier training with checkpoints, which this one must not go on from.
    with started(["bash", "run.sh", *words, "max_update=6", "checkpoint_every=3", "--loss", "arcface"]) as group:
        output, _ = group.communicate(timeout=LIMIT)
    assert group.returncode == 0 and checkpoints_in(models) == [3, 6], output
    with started(["bash", "run.sh", *words], MAX_RESTARTS="2") as group:
        wait_until(lambda: len(ranks_with(models)) == 2)
        os.kill(ranks_with(models)[0], signal.SIGKILL)  # before it has begun
        wait_until(lambda: list(models.glob("small-arcface-demo.*")))  # the earlier one has been moved aside
        (newest, *_) = wait_until(lambda: checkpoints_in(models, "small-arcface-demo"))
        os.kill(ranks_with(models)[1], signal.SIGKILL)
        output, _ = group.communicate(timeout=LIMIT)
    assert group.returncode == 0, output
    assert re.findall(r"^run.sh: exit code \d+, restart (\d) of 2$", output, re.MULTILINE) == ["1", "2"], output
    assert newest % 5 == 0 and re.search(r"resumes from update \d*[05],", output), output
    assert json.loads((models / "small-arcface-demo" / "summary.json").read_text())["updates"] == 50


def test_what_was_refused_is_not_tried_again(words, run):
    result = run("bash", "run.sh", *words, "batch_size=200", MAX_RESTARTS="2")
    assert result.returncode == 2 and "restart" not in result.stderr, result.stderr
