"""A short run of the reading benchmark."""

import re
import subprocess
import sys

import pytest

from paths import ROOT


@pytest.mark.slow
def test_reading_is_faster_than_the_textbook_and_close_to_mxnets_own():
    options = ["--rounds", "1", "--batches", "20", "--identities", "60"]
    command = [sys.executable, ROOT / "benchmarks" / "reading.py", *options]
    result = subprocess.run(command, capture_output=True, text=True, timeout=800)
    assert result.returncode == 0, result.stderr
    assert "1440 images of 7" in result.stdout
    # Seconds of a short measurement depend on what the other tests do meanwhile, processor time much less.
    against_mxnet, against_textbook = (
        re.search(rf"FaceImageIter{case}, processor time: (\d+\.\d+)", result.stdout)
        for case in (r" / ImageRecordIter, \d+ threads each", r", \d+ threads / textbook")
    )
    assert float(against_mxnet[1]) > 0.5 and float(against_textbook[1]) > 2.5, result.stdout
