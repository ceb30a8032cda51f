"""The PyTorch trainer's commands: the tutorial's launcher and torchrun, their files, and resuming."""

import socket

import pytest
from conftest import CLASSES, TORCH, VERIFIED, needs_torch
from outcome import check_outcome

from partial_fc.checkpoint import CheckpointFolder

pytestmark = [pytest.mark.slow, needs_torch]

PYTHON = TORCH / "python"
# Prints the first tensor of each file.
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


def test_the_tutorials_launcher_and_its_check_of_the_submission(succeed, arguments, output):
    port = f"--master_port={free_port()}"
    command = "-m torch.distributed.launch --nproc_per_node=2 --nnodes=1 --node_rank=0 --master_addr=127.0.0.1".split()
    succeed(PYTHON, *command, port, "train.py", *arguments, *VERIFIED)
    check_outcome(output, 2, "torch")
    names = ["backbone.pth", "rank_0_softmax_weight.pt", "rank_1_softmax_weight_mom.pt"]
    shape = f"({CLASSES // 2}, 128)"
    assert succeed(PYTHON, "-c", LOAD, *(output / name for name in names)).stdout.splitlines() == [
        "conv1.weight (16, 3, 7, 7) torch.float32 cpu",
        f" {shape} torch.float32 cpu",
        f" {shape} torch.float32 cpu",
    ]
    result = succeed(PYTHON, "onnx_helper_sample.py", "--model_root", f"{output}/", "--time-limit", "1000")
    assert result.stdout.endswith("track ms1m: all rules passed\n")


def test_a_training_of_arcface_torch_goes_on(succeed, arguments, output, tmp_path):
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
    succeed(PYTHON, "-c", program, PYTHONPATH="tests:pytorch:.")
    launch = [TORCH / "torchrun", "--standalone", "--nproc_per_node=1", "train.py", *arguments, "checkpoint_every=5"]
    result = succeed(*launch, "--resume", theirs / "checkpoint_gpu_0.pt")
    assert "training of 2 processes goes on after 1 epoch and 3 batches" in result.stdout
    assert "resumes from update 3, saved by 2 ranks in" in result.stdout
    assert "Epoch: 1   Global Step: 4" in result.stdout
    assert [update for update, _ in CheckpointFolder(str(output / "checkpoints"), 2).complete()] == [7, 5]
