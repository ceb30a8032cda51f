"""The program of docs/tasks.md trains with the settings of the page."""

import importlib
import json
import re
import shlex

import default
from partial_fc.training.trainer import train
from partial_fc.utils.config import parse_assignments
from partial_fc_torch.build import TorchFramework
from paths import ROOT

PAGE = (ROOT / "docs" / "tasks.md").read_text()


def test_the_task_of_the_page_learns(tmp_path, monkeypatch):
    ((name, program),) = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL)
    command, _ = re.findall(r"```\nbash pytorch/run.sh (.*?)```", PAGE, re.DOTALL)
    (tmp_path / name).write_text(program)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    changes = parse_assignments(shlex.split(command.replace("\\\n", " ")))
    changes |= {
        "num_classes": 200,
        "max_update": 120,
        "lr_steps": changes["lr_steps"] // 5,  # a list of one number
        "verify_every": 60,
        "output": str(tmp_path / "run"),
    }
    train(default.generate_config(changes=changes, trainer="torch"), TorchFramework())
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["verification"]["new_devices"] > summary["baselines"]["untrained"] + 0.05
