"""The layer in the loops of others: the programs of examples/loops, and checkpoints on other numbers of processes."""

import re

import numpy as np
import pytest
from conftest import TORCH, needs_torch
from groups import LAUNCH

pytestmark = needs_torch


def test_any_loop_has_the_losses_of_our_trainer(run, tmp_path):
    """That of the form of arcface_torch in two parts, of which the second resumes."""
    loops = [f"examples.loops.{name} {tmp_path / name}" for name in ("with_ddp", "with_fsdp", "with_accelerate")]
    loops += ["examples.loops.with_fabric", *(f"examples.loops.as_arcface_torch {tmp_path} {end}" for end in (1, 2))]
    programs = ["commands.engine_losses 0.5", "commands.engine_losses 1.0", *loops]
    done = run(TORCH / "python", "tests/in_turn.py", *" -- ".join(programs).split(), timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    parts = re.findall(r"^== (.*)\n((?:(?!==).*\n)*)", done.stdout, re.MULTILINE)
    losses = {
        name: list(map(float, re.findall(r"^rank 0 loss (\d+\.\d{7})$", text, re.MULTILINE))) for name, text in parts
    }
    sampled, whole, *others, first, second = (losses[name] for name in programs)
    assert len(sampled) == len(whole) == 8 and sampled[-1] < sampled[0] / 2
    for loop, found in zip(loops, others):
        np.testing.assert_allclose(found, sampled, rtol=1e-5, err_msg=loop)
    np.testing.assert_allclose([*first, *second], whole, rtol=1e-5)
    assert (tmp_path / "with_fsdp" / ".metadata").exists()


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
