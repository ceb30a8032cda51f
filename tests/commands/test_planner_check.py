"""Compares the planner's figures with a run, in fresh processes."""

import json
import re

import pytest
from conftest import TORCH, needs_torch

from paths import ROOT, SOURCES

pytestmark = pytest.mark.slow


CASES = [{"classes": 20_000}, {"classes": 20_000, "ratio": 0.5, "logits_cache_mb": 0}]
# The smallest case is first: 2 MB that the first step of a process allocates for good count for it.
TORCH_CASES = [
    {"classes": 20_000, "margin": "curricularface"},
    {"classes": 40_000, "ratio": 0.5},
    {"classes": 2000, "network": "r18", "batch": 2},
    {"classes": 2000, "network": "r18", "batch": 2, "gradient_dtype": "float16"}
    | {"backbone_optimizer": "adamw", "ema": True, "activation_checkpointing": True},
    {"classes": 40_000, "ratio": 0.5, "gradient_acc": 3},
    {"classes": 2000, "embedding": 64, "batch": 2048, "network": "own_task:deep", "task": "own_task:Words"},
]


def compared(text):
    """Returns (name, planned kB, difference in percent) of each line."""
    lines = re.findall(r"^  (\S.*?) {2,}([\d,.]+) +([\d,.]+) +([+-]\d+\.\d)%$", text, re.MULTILINE)
    return [(name, float(planned.replace(",", "")), float(percent)) for name, planned, _, percent in lines]


def assert_memory_is_within_10_percent(text, cases):
    """Checks the memory, and that the text has the times of each step, which depend on the machine's load."""
    memory = [one for one in compared(text) if one[0] in ("class centers and momentum", "beyond them")]
    assert len(memory) == 2 * len(cases)
    assert all(kilobytes > 10e3 or name != "beyond them" for name, kilobytes, _ in memory), text
    assert all(abs(percent) <= 10 for *_, percent in memory), text
    assert [name for name, *_ in compared(text)].count("least and fastest step, ms") == len(cases), text


def test_memory_and_collectives_are_within_10_percent_of_a_run(succeed):
    command = "mpirun -q -np 2 python benchmarks/planner_check.py".split()
    result = succeed(*command, *map(json.dumps, CASES))
    assert_memory_is_within_10_percent(result.stdout, CASES)
    collectives = [one for one in compared(result.stdout) if one[0].startswith(("all-gather", "reduce-scatter"))]
    assert len(collectives) == 3 * len(CASES)
    assert not any(percent for *_, percent in collectives), result.stdout


@needs_torch
def test_memory_of_the_pytorch_trainer_is_within_10_percent_of_a_run(succeed):
    command = [TORCH / "torchrun", "--standalone", "--nproc_per_node=2", "benchmarks/planner_check.py"]
    result = succeed(*command, *map(json.dumps, TORCH_CASES), PYTHONPATH=f"{SOURCES}:{ROOT / 'tests'}")
    assert_memory_is_within_10_percent(result.stdout, TORCH_CASES)
    sent = [percent for name, _, percent in compared(result.stdout) if name.startswith(("sent by TCP", "received"))]
    assert len(sent) == 2 * len(TORCH_CASES) and all(abs(percent) <= 2 for percent in sent), result.stdout
