"""The programs of docs/tasks.md train with the settings of the page."""

import importlib
import json
import re
import shlex
import sys

import numpy as np
import pytest

import default
from partial_fc.data.item_batches import ItemBatches
from partial_fc.data.sources.dataset import DatasetItems
from partial_fc.training.trainer import train
from partial_fc.utils.config import parse_assignments
from partial_fc_torch.build import TorchFramework
from paths import ROOT

PAGE = (ROOT / "docs" / "tasks.md").read_text()
PROGRAMS = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder from which the programs can be imported."""
    assert list(PROGRAMS) == ["signals.py", "balanced.py"]
    for name, program in PROGRAMS.items():
        (tmp_path / name).write_text(program)
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    return tmp_path


def run(command, output, **changes):
    """Trains with the settings of a command of the page, and `changes`."""
    settings = parse_assignments(shlex.split(command.replace("\\\n", " "))) | {"output": str(output), **changes}
    train(default.generate_config(changes=settings, trainer="torch"), TorchFramework())


def test_the_task_of_the_page_learns(folder):
    command, _ = re.findall(r"```\nbash pytorch/run.sh (.*?)```", PAGE, re.DOTALL)
    run(command, folder / "run", num_classes=200, max_update=120, lr_steps=[80], verify_every=60)
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert summary["verification"]["new_devices"] > summary["baselines"]["untrained"] + 0.05


def test_the_order_of_the_page_has_all_classes_equally_often_on_any_ranks():
    items = DatasetItems("balanced:Recordings")
    counts = np.bincount(items.labels)
    assert len(counts) == 200 and counts.max() == 8 and (counts == 1).sum() == 130
    ranks = [ItemBatches(items, 16, True, rank, 2, seed=3) for rank in range(2)]
    firsts = range(0, len(items) - 31, 32)
    labels = [batches.batch(epoch, first).labels for epoch in range(60) for first in firsts for batches in ranks]
    drawn = np.bincount(np.concatenate(labels), minlength=200)
    # Poisson numbers with a standard deviation of 10 %: a class of 8 items would have 8 times as many, or 3.6 of it.
    assert drawn.sum() / 200 == pytest.approx(100, rel=0.2)
    assert 0.6 < drawn.min() / drawn.mean() and drawn.max() / drawn.mean() < 1.5
    whole = ItemBatches(items, 32, True, seed=3).batch(1, 32).labels
    np.testing.assert_array_equal(np.concatenate([batches.batch(1, 32).labels for batches in ranks]), whole)


def test_a_training_with_this_order_resumes_exactly_and_not_with_another_one(folder):
    (command,) = re.findall(r"`bash pytorch/run.sh (.*?)` trains", PAGE)
    sizes = {"batch_size": 64, "max_update": 20, "lr_steps": [], "checkpoint_every": 10, "embedding_size": 16}
    run(command, folder / "whole", **sizes)
    checkpoint = str(folder / "whole" / "checkpoints" / "step-0000000010")
    run(command, folder / "resumed", resume=checkpoint, **sizes)
    for name in ("backbone.pth", "rank_0_softmax_weight.pt"):
        assert (folder / "resumed" / name).read_bytes() == (folder / "whole" / name).read_bytes()
    (folder / "usual.py").write_text("from balanced import Recordings\n\ndel Recordings.epoch_positions\n")
    with pytest.raises(ValueError, match="data_set=.* the order of the images differs"):
        run(command, folder / "usual", resume=checkpoint, rec="usual:Recordings", **sizes)
