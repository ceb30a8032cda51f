"""The batch scripts under Slurm: a job that is asked to stop saves, is requeued, and goes on to its end."""

import re

import pytest
from conftest import LIMIT, needs_torch
from groups import checkpoints_in

import virtual_hosts
import virtual_slurm
from paths import ROOT
from virtual_slurm import Slurm
from waiting import happens

REASON = virtual_hosts.unavailable() or virtual_slurm.unavailable()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(REASON), reason=REASON or "-")]

UPDATES = 120


@pytest.fixture
def slurm(tmp_path):
    with virtual_hosts.Hosts(["hosta", "hostb"], tmp_path / "hosts") as hosts:
        yield Slurm(hosts, tmp_path / "slurm")


@pytest.mark.parametrize("trainer", ["mxnet", pytest.param("torch", marks=needs_torch)])
def test_a_job_that_is_asked_to_stop_goes_on_after_its_requeue(trainer, slurm, settings, tmp_path):
    """test_resume.py compares the bytes of a resumed training."""
    arguments = [*settings, f"max_update={UPDATES}", "verify_every=1000", "save_every=1000", "checkpoint_every=10"]
    models, output = tmp_path / "models", tmp_path / "output"
    script = f"deploy/cluster/{trainer}.sbatch"
    command = ["sbatch", "--parsable", "--nodes=2", f"--output={output}", script, *arguments]
    job = slurm.run(*command, cwd=ROOT, NP="1", OMP_NUM_THREADS="1").strip()
    wait_for(lambda: checkpoints_in(models), output)
    slurm.run("scancel", "--signal=USR1", "--batch", job)  # as Slurm does before the time limit by --signal=B:USR1@300
    wait_for(lambda: "goes back to the queue" in output.read_text(), output)
    stopped_at = max(checkpoints_in(models))
    wait_for(lambda: re.search("JobState=(COMPLETED|FAILED)", slurm.run("scontrol", "show", "job", job)), output)
    text, shown = output.read_text(), slurm.run("scontrol", "show", "job", job)
    assert "JobState=COMPLETED" in shown and "Restarts=1" in shown, text
    assert 0 < stopped_at < UPDATES and re.search(rf"resumes from update {stopped_at}, saved by 2 ranks", text), text
    assert not re.search("^error", text, re.MULTILINE), text
    assert max(checkpoints_in(models)) == UPDATES


def wait_for(happened, output):
    assert happens(happened, LIMIT), output.read_text() if output.exists() else "no output"
