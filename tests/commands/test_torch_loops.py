"""The layer in other training loops, those of examples/loops, and its checkpoints on other numbers of processes."""

import re

import numpy as np
import pytest
from conftest import IN_TURN, needs_torch

pytestmark = [pytest.mark.slow, needs_torch]


@pytest.fixture
def in_turn(succeed):
    """Runs "<processes> <module> <argument> ..." one after the other, see in_turn.py; returns rank 0's output."""
    return lambda *programs: succeed(*IN_TURN, " -- ".join(programs)).stdout


def test_any_loop_has_the_losses_of_our_trainer(in_turn, tmp_path):
    """The loop in the form of arcface_torch runs in two parts; the second resumes."""
    loops = [f"with_{name} {tmp_path / name}" for name in ("ddp", "fsdp", "accelerate", "fabric")]
    loops += [f"as_arcface_torch {tmp_path} {epochs}" for epochs in (1, 2)]
    programs = [f"2 commands.engine_losses {rate}" for rate in (0.5, 1.0)]
    programs += [f"2 examples.loops.{loop}" for loop in loops]
    output = in_turn(*programs)
    parts = [re.findall(r"^rank 0 loss (\d+\.\d{7})$", part, re.MULTILINE) for part in output.split("== ")[1:]]
    sampled, whole, *others, first, second = (list(map(float, losses)) for losses in parts)
    assert len(sampled) == len(whole) == 8 and sampled[-1] < sampled[0] / 2
    for loop, losses in zip(loops, others):
        np.testing.assert_allclose(losses, sampled, rtol=1e-5, err_msg=loop)
    np.testing.assert_allclose([*first, *second], whole, rtol=1e-5)
    assert (tmp_path / "fsdp" / ".metadata").exists()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_checkpoint_of_three_processes_continues_on_two_and_on_one(dtype, in_turn, tmp_path):
    folders = ["-", *(str(tmp_path / str(processes)) for processes in (3, 2, 1))]
    steps = list(zip(folders, folders[1:]))
    output = in_turn(*(f"{after[-1]} commands.sharded_checkpoint {before} {after} {dtype}" for before, after in steps))
    assert re.findall(r"^update \d$", output, re.MULTILINE) == ["update 1", "update 2", "update 3"]
    for before, after in steps:
        trained, loaded = np.load(f"{after}.npz"), np.load(f"{after}-before.npz")
        assert not np.array_equal(trained["weight"], loaded["weight"]) and trained["weight_exp_avg"].any()
        for name, rows in np.load(f"{before}.npz").items() if before != "-" else ():
            np.testing.assert_array_equal(loaded[name], rows, err_msg=name)
