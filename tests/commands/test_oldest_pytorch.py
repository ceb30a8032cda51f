"""The PyTorch trainer with the oldest PyTorch that it supports: minutes of fetching and unpacking, mostly.

And the slow tests of tests/torch, which need the other Python than those beside them.
"""

import os
import subprocess

import pytest
from conftest import TORCH, needs_torch

from paths import ROOT

LIMIT = 1200  # seconds; 3 GB to fetch if no index has a CPU build


pytestmark = [pytest.mark.slow, needs_torch]


def succeeds(*command):
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run([str(word) for word in command], cwd=ROOT, env=outside, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)


@pytest.mark.timeout(LIMIT + 30)
def test_the_tests_of_one_process_pass():
    succeeds("timeout", "--kill-after=10", LIMIT, "bash", "tests/torch_versions.sh")


def test_the_slow_tests_of_one_process_pass():
    tests = ["tests/torch", "tests/parallel/torch"]
    succeeds("timeout", "--kill-after=10", 280, TORCH / "python", "-m", "pytest", "-q", "-m", "slow", *tests)
