"""A slow link: what crosses it and how long a step takes, beside what the planner predicts."""

import sys

import pytest
from conftest import needs_hosts

pytestmark = [pytest.mark.slow, needs_hosts]


def test_a_step_over_a_slow_link_takes_what_its_bytes_take(run):
    done = run(sys.executable, "benchmarks/links.py", "--mbit", "50", timeout=120, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    free, slow = ([cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines()[-2:])
    assert slow[0] == "2 ranks on 2 hosts, 50 Mbit/s"
    planned, counted = numbers(slow[2])
    assert planned <= counted < 1.05 * planned
    fastest, _, predicted = (number for cell in slow[3:6] for number in numbers(cell))
    assert 0.85 * predicted < fastest < 3 * predicted  # other work makes a step longer, never shorter
    assert fastest > 2 * numbers(free[3])[0]
    assert predicted > 8 * planned / 50  # ms; kB over 50 Mbit/s


def numbers(cell):
    """``5,508, 5,567`` -> [5508.0, 5567.0]."""
    return [float(word.replace(",", "")) for word in cell.split(", ")]
