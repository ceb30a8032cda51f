"""The layer in the loops of others: the programs of examples/loops, and checkpoints on other numbers of processes."""

import re

import numpy as np
import pytest
from conftest import TORCH, needs_torch, slow
from groups import LAUNCH

pytestmark = needs_torch


def losses(run, *program):
    """Those that rank 0 of two processes prints."""
    done = run(*LAUNCH["torchrun"], *program, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr
    return [float(loss) for loss in re.findall(r"rank 0 loss (\d+\.\d{7})", done.stdout)]


@pytest.fixture(scope="module")
def of_our_trainer():
    """Sample rate -> losses of TorchEngine, from one start."""
    return {}


def ours(run, rate, of_our_trainer):
    if rate not in of_our_trainer:
        of_our_trainer[rate] = losses(run, "tests/commands/engine_losses.py", rate)
        assert len(of_our_trainer[rate]) == 8 and of_our_trainer[rate][-1] < of_our_trainer[rate][0] / 2
    return of_our_trainer[rate]


@pytest.mark.parametrize("name", ["with_ddp", slow("with_fsdp"), slow("with_accelerate"), slow("with_fabric")])
def test_any_loop_has_the_losses_of_our_trainer(name, run, of_our_trainer, tmp_path):
    found = losses(run, "-m", f"examples.loops.{name}", tmp_path / "checkpoint")
    np.testing.assert_allclose(found, ours(run, 0.5, of_our_trainer), rtol=1e-5)
    assert (tmp_path / "checkpoint" / ".metadata").exists() == (name == "with_fsdp")


@pytest.mark.slow
def test_a_loop_of_arcface_torch_resumes_with_the_losses_of_our_trainer(run, of_our_trainer, tmp_path):
    program = "-m", "examples.loops.as_arcface_torch", tmp_path
    found = [*losses(run, *program, 1), *losses(run, *program, 2)]
    np.testing.assert_allclose(found, ours(run, 1.0, of_our_trainer), rtol=1e-5)


@pytest.mark.slow
def test_a_checkpoint_of_three_processes_continues_on_two_and_on_one(run, tmp_path):
    folders = ["-", *(str(tmp_path / str(processes)) for processes in (3, 2, 1))]
    for update, (before, after) in enumerate(zip(folders, folders[1:]), start=1):
        group = [*LAUNCH["torchrun"][:-1], f"--nproc_per_node={after[-1]}"]
        launcher = group if after[-1] > "1" else [TORCH / "python"]
        done = run(*launcher, "tests/commands/sharded_checkpoint.py", before, after, CUDA_VISIBLE_DEVICES="")
        assert done.returncode == 0, done.stderr
        assert f"update {update}" in done.stdout
        trained, loaded = np.load(f"{after}.npz"), np.load(f"{after}-before.npz")
        assert not np.array_equal(trained["weight"], loaded["weight"]) and trained["weight_exp_avg"].any()
        for name, rows in np.load(f"{before}.npz").items() if update > 1 else ():
            np.testing.assert_array_equal(loaded[name], rows, err_msg=name)
