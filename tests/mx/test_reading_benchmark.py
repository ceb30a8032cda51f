"""A short run of the reading benchmark."""

import re
import subprocess
import sys

import pytest

from paths import ROOT


@pytest.mark.slow
@pytest.mark.thorough
def test_reading_is_faster_than_the_textbook_and_close_to_mxnets_own():
    # tests/run.sh starts nothing beside it. Three rounds, because a virtual machine may share its processors. The
    # targets on a quiet machine and five rounds are 0.9 and 6.
    options = ["--rounds", "3", "--batches", "20", "--identities", "60"]
    command = [sys.executable, ROOT / "benchmarks" / "reading.py", *options]
    result = subprocess.run(command, capture_output=True, text=True, timeout=800)
    assert result.returncode == 0, result.stderr
    assert "1440 images of 7" in result.stdout
    for what in ("", ", processor time"):
        against_mxnet = re.search(
            rf"FaceImageIter / ImageRecordIter, \d+ threads each{what}: (\d+\.\d+)", result.stdout
        )
        against_textbook = re.search(rf"FaceImageIter, \d+ threads / textbook{what}: (\d+\.\d+)", result.stdout)
        assert float(against_mxnet[1]) > 0.5 and float(against_textbook[1]) > 2.5, result.stdout
