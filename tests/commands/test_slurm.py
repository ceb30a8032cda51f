"""The batch scripts under Slurm: a job that is asked to stop is requeued, and ends with the bytes of another."""

import re
import time

import pytest
from conftest import needs_torch
from groups import LAUNCH, checkpoints_in

import virtual_hosts
import virtual_slurm
from partial_fc.checkpoint import CheckpointFolder, read_manifest
from paths import ROOT
from virtual_slurm import Slurm

REASON = virtual_hosts.unavailable() or virtual_slurm.unavailable()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(REASON), reason=REASON or "-")]

UPDATES, LIMIT = 120, 120  # the latter in seconds
SCRIPTS = {
    "mxnet": ("cluster/mxnet.sbatch", ["bash", "run.sh"]),
    "torch": ("cluster/torch.sbatch", [*LAUNCH["torchrun"], "train.py"]),
}


@pytest.fixture
def slurm(tmp_path):
    with virtual_hosts.Hosts(["hosta", "hostb"], tmp_path / "hosts") as hosts:
        yield Slurm(hosts, tmp_path / "slurm")


def trained(models):
    """Updates, and sizes and SHA-256 of all files, of the newest checkpoint."""
    (folder,) = models.glob("*/checkpoints")
    manifest = read_manifest(CheckpointFolder(str(folder), 2).complete()[0][1])
    return manifest.num_update, manifest.files


@pytest.mark.parametrize("trainer", ["mxnet", pytest.param("torch", marks=needs_torch)])
def test_a_job_that_is_asked_to_stop_goes_on_after_its_requeue(trainer, slurm, settings, run, tmp_path):
    script, alone = SCRIPTS[trainer]
    arguments = [*settings, f"max_update={UPDATES}", "verify_every=1000", "save_every=1000", "checkpoint_every=10"]
    result = run(*alone, *arguments, f"models_root={tmp_path / 'one'}", NP="2", OMP_NUM_THREADS="1", timeout=LIMIT)
    assert result.returncode == 0, result.stdout + result.stderr

    models, output = tmp_path / "models", tmp_path / "output"
    command = ["sbatch", "--parsable", "--nodes=2", f"--output={output}", script, *arguments, f"models_root={models}"]
    job = slurm.run(*command, cwd=ROOT, NP="1", OMP_NUM_THREADS="1").strip()
    wait_for(lambda: checkpoints_in(models), output)
    slurm.run("scancel", "--signal=USR1", "--batch", job)  # what --signal=B:USR1@300 makes Slurm do before the limit
    wait_for(lambda: "goes back to the queue" in output.read_text(), output)
    stopped_at, _ = trained(models)
    wait_for(lambda: re.search("JobState=(COMPLETED|FAILED)", slurm.run("scontrol", "show", "job", job)), output)
    text, shown = output.read_text(), slurm.run("scontrol", "show", "job", job)
    assert "JobState=COMPLETED" in shown and "Restarts=1" in shown, text
    assert 0 < stopped_at < UPDATES and re.search(rf"resumes from update {stopped_at}, saved by 2 ranks", text), text
    assert not re.search("^error", text, re.MULTILINE), text
    assert trained(models) == trained(tmp_path / "one")


def wait_for(happened, output):
    end = time.monotonic() + LIMIT
    while not happened():
        assert time.monotonic() < end, output.read_text() if output.exists() else "no output"
        time.sleep(0.1)
