"""The commands of the PyTorch trainer: the tutorial's and torchrun, the files that they write, and resuming."""

import socket

import numpy as np
import pytest
from conftest import CLASSES, TORCH, VERIFIED, needs_torch
from groups import checkpoint_contents
from outcome import check_outcome

from partial_fc.checkpoint import CheckpointFolder
from partial_fc.layer.sampling import WeightIndexSampler

pytestmark = needs_torch

PYTHON = TORCH / "python"
LIMIT = 120  # seconds
# Prints what each file with tensors holds.
LOAD = """
import sys, torch
for path in sys.argv[1:]:
    content = torch.load(path, weights_only=True)
    tensors = content if isinstance(content, dict) else {"": content}
    for name, tensor in list(tensors.items())[:1]:
        print(name, tuple(tensor.shape), tensor.dtype, tensor.device)
"""


@pytest.fixture
def output(tmp_path):
    return tmp_path / "ms1mv3_arcface_small"


@pytest.fixture
def arguments(settings, output):
    return [*settings, f"output={output}"]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def succeed(run, *command):
    result = run(*command, timeout=LIMIT)
    assert result.returncode == 0, result.stdout + result.stderr
    return result


def test_the_tutorials_launcher_and_its_check_of_the_submission(run, arguments, output):
    port = f"--master_port={free_port()}"
    command = "-m torch.distributed.launch --nproc_per_node=2 --nnodes=1 --node_rank=0 --master_addr=127.0.0.1".split()
    succeed(run, PYTHON, *command, port, "train.py", *arguments, *VERIFIED)
    check_outcome(output, 2, "torch")
    names = ["backbone.pth", "rank_0_softmax_weight.pt", "rank_1_softmax_weight_mom.pt"]
    shape = f"({CLASSES // 2}, 128)"
    assert succeed(run, PYTHON, "-c", LOAD, *(output / name for name in names)).stdout.splitlines() == [
        "conv1.weight (16, 3, 7, 7) torch.float32 cpu",
        f" {shape} torch.float32 cpu",
        f" {shape} torch.float32 cpu",
    ]
    result = succeed(run, PYTHON, "onnx_helper_sample.py", "--model_root", f"{output}/", "--time-limit", "1000")
    assert result.stdout.endswith("track ms1m: all rules passed\n")


def contents(folder):
    """Arrays of the newest checkpoint, without the statistics, by name, and its manifest."""
    ((_, path), *_) = CheckpointFolder(str(folder / "checkpoints"), 2).complete()
    return checkpoint_contents(path)


@pytest.mark.slow
def test_a_resumed_training_ends_with_the_bytes_of_an_uninterrupted_one(run, arguments, tmp_path):
    """Dropout draws in every step, r = 0.5 draws negatives, the loss has a state, the rate changes after update 5.

    With AdamW, whose states have two widths; test_resume.py and test_between_trainers.py have SGD.
    """

    def train(name, ranks, updates, *more):
        own = [
            "dropout=0.3",
            "sample_ratio=0.5",
            "center_optimizer=adamw",
            "memory_bank_lr=0.01",
            f"output={tmp_path / name}",
            f"max_update={updates}",
            *more,
        ]
        launcher = [PYTHON, "tests/in_turn.py", ranks, "train"]
        succeed(run, *launcher, "--network", "small", "--loss", "curricularface", *arguments, *own)
        return contents(tmp_path / name)

    _, expected = train("uninterrupted", 2, 7, "checkpoint_every=4", "checkpoints_kept=2")
    _, (_, path) = CheckpointFolder(str(tmp_path / "uninterrupted" / "checkpoints"), 2).complete()
    arrays, found = train("parts", 2, 7, "--resume", path)
    assert found.num_update == 7
    assert found.files == expected.files  # sizes and SHA-256 of backbone, statistics, centers and their states
    assert found.rank_states == expected.rank_states and found.state["data"] == expected.state["data"]

    # At another number of processes: what is saved, without a further update. test_resume.py trains on.
    path = CheckpointFolder(str(tmp_path / "parts" / "checkpoints"), 2).complete()[0][1]
    restored, manifest = train("three", 3, 7, "--resume", path)
    assert manifest.ranks == 3 and manifest.state["data"] == found.state["data"]
    assert restored.keys() == arrays.keys() > {"state:fc.weight:", "weight_updates", "margin:t"}
    for name, array in arrays.items():
        np.testing.assert_array_equal(restored[name], array, err_msg=name)
    for rank, state in enumerate(manifest.rank_states):  # not those of a new training, which would draw the same again
        sampler = WeightIndexSampler(1, 2, rank, seed=0)
        sampler.restart(7)
        assert state["sampler"] == sampler.state()


def test_a_training_of_arcface_torch_goes_on(run, arguments, output, tmp_path):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    program = f"""
import torch
from arcface_files import Textbook
from partial_fc_torch.backbones import get_model
sgd = lambda groups: torch.optim.SGD(groups, lr=0.01, momentum=0.9)
textbook = Textbook(get_model("small", num_features=128), {CLASSES}, 128, sgd)
for _ in range(3):
    textbook.step(torch.randn(8, 3, 112, 112), torch.arange(8))
textbook.save({str(theirs)!r}, ranks=2, epoch=1)
"""
    written = run(PYTHON, "-c", program, PYTHONPATH="tests:pytorch:.")
    assert written.returncode == 0, written.stderr
    launch = [TORCH / "torchrun", "--standalone", "--nproc_per_node=1", "train.py", *arguments, "checkpoint_every=5"]
    result = run(*launch, "--resume", theirs / "checkpoint_gpu_0.pt")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "training of 2 processes goes on after 1 epoch and 3 batches" in result.stdout
    assert "resumes from update 3, saved by 2 ranks in" in result.stdout
    assert "Epoch: 1   Global Step: 4" in result.stdout
    assert [update for update, _ in CheckpointFolder(str(output / "checkpoints"), 2).complete()] == [7, 5]
