"""Standard streams without a reader, and files that cannot be written."""

import os
import subprocess
import sys

import pytest

from partial_fc.utils.streams import BestEffortFile
from paths import ROOT

# Prints more than a pipe can buffer, then writes lost_output() to the first file that it opens.
PROGRAM = """
import os, sys
from partial_fc.utils.streams import keep_streams, lost_output
keep_streams()
with open(sys.argv[1], "w") as file:
    for stream in (sys.stdout, sys.stderr):
        print("x" * 100_000, file=stream, flush=True)
    print(f"{file.fileno() > 2} {lost_output()}", file=file)
"""


@pytest.mark.parametrize(
    "redirection, reason",
    [
        ("2>&1 | head -c 3", "Broken pipe"),
        (">/dev/full", "No space left on device"),
        ("<&- >&-", "Bad file descriptor"),
        ("2>&-", "Bad file descriptor"),
        ("2>&1 | cat", ""),
    ],
)
def test_a_program_continues_without_its_streams(redirection, reason, tmp_path):
    command = f'set -o pipefail; "$0" -c "$1" "$2" {redirection}'
    words = ["bash", "-c", command, sys.executable, PROGRAM, str(tmp_path / "out")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PARTIAL_FC_OUTPUT_LOST": ""}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out").read_text() == f"True {reason}\n"


def test_a_full_disk_is_reported_once():
    losses = []
    with BestEffortFile("/dev/full", "wb", losses.append) as file:
        assert [file.write(b"four"), file.write(b"one")] == [4, 3]
    assert [error.strerror for error in losses] == ["No space left on device"] and file.failed
