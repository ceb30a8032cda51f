"""The planner's figures against those of a run, in processes that have run nothing else."""

import json
import re

import pytest

pytestmark = pytest.mark.slow


CASES = [
    {"classes": 40_000, "ratio": ratio, "logits_cache_mb": logits_cache_mb}
    for ratio in (1.0, 0.5)
    for logits_cache_mb in (256, 0)
]


def test_memory_and_collectives_are_within_10_percent_of_a_run(run):
    result = run("mpirun", "-q", "-np", "2", "python", "benchmarks/planner_check.py", *map(json.dumps, CASES))
    assert result.returncode == 0, result.stdout + result.stderr
    lines = re.findall(r"^  (\S.*?) {2,}([\d,.]+) +([\d,.]+) +([+-]\d+\.\d)%$", result.stdout, re.MULTILINE)
    found = [(name, float(planned.replace(",", "")), abs(float(percent))) for name, planned, _, percent in lines]
    memory = [one for one in found if one[0] in ("class centers and momentum", "beyond them")]
    collectives = [one for one in found if one[0].startswith(("all-gather", "reduce-scatter"))]
    assert (len(memory), len(collectives)) == (2 * len(CASES), 3 * len(CASES))
    assert all(kilobytes > 10e3 and percent <= 10 for _, kilobytes, percent in memory), result.stdout
    assert not any(percent for *_, percent in collectives), result.stdout
