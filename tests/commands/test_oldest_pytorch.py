"""The PyTorch trainer with the oldest PyTorch that it supports: minutes of fetching and unpacking, mostly."""

import os
import subprocess

import pytest
from conftest import needs_torch

from paths import ROOT

LIMIT = 1200  # seconds; 3 GB to fetch if no index has a CPU build


pytestmark = [pytest.mark.slow, needs_torch]


@pytest.mark.timeout(LIMIT + 30)
def test_the_tests_of_one_process_pass():
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = ["timeout", "--kill-after=10", str(LIMIT), "bash", "tests/torch_versions.sh"]
    done = subprocess.run(command, cwd=ROOT, env=outside, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
