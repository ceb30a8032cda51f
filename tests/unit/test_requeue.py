"""deploy/cluster/requeue.sh around small commands, with a scontrol that writes down its arguments."""

import signal
import subprocess
import time

import pytest

from paths import ROOT

# The command ignores the signal that asks it to stop, as a training that is saving, and ends by itself.
SCRIPT = """
set -euo pipefail
. {root}/deploy/cluster/requeue.sh
scontrol() {{ echo "scontrol $*"; }}
stop_training() {{ echo asked; kill -TERM "$1"; }}
run_until_signal bash -c 'trap "" TERM; echo runs; sleep {seconds}; echo ended; exit {code}'
"""


def run(seconds, code, signals):
    script = SCRIPT.format(root=ROOT, seconds=seconds, code=code)
    environment = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "7"}
    with subprocess.Popen(["bash", "-c", script], env=environment, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout.readline() == "runs\n"
        for _ in range(signals):
            job.send_signal(signal.SIGUSR1)
            time.sleep(0.2)
        output, _ = job.communicate(timeout=20)
    return job.returncode, output.splitlines()


@pytest.mark.parametrize(
    "code, signals, expected",
    [
        (0, 0, (0, ["ended"])),
        (3, 0, (3, ["ended"])),
        (0, 1, (0, ["asked", "ended"])),  # it has finished instead
    ],
)
def test_a_job_that_is_not_stopped_ends_with_its_code(code, signals, expected):
    assert run(0.1 + signals, code, signals) == expected


@pytest.mark.parametrize("code, signals", [(75, 0), (75, 1), (1, 2)])
def test_a_stopped_job_is_requeued_once_the_training_has_ended(code, signals):
    returned, lines = run(0.1 + signals, code, signals)
    assert returned == 0
    assert lines[: bool(signals) + 1] == ["asked", "ended"][1 - bool(signals) :]
    assert lines[-2:] == ["stopped by a signal: job 7 goes back to the queue", "scontrol requeue 7"]
