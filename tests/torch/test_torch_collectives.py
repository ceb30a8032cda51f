"""TorchBackend with a lost rank, with a process group that has no CPU backend, and its error messages."""

import subprocess
import sys
import textwrap

import pytest
import torch.distributed as dist

from partial_fc.distributed.collectives import Collectives
from partial_fc.distributed.run_rank import run_rank
from partial_fc_torch.collectives import TorchBackend, default_collectives
from paths import ROOT


def two_ranks(tmp_path, code):
    """Runs code on 2 ranks in a clean environment; returns what both print."""
    (tmp_path / "rank.py").write_text("import os\nimport torch, torch.distributed as dist\n" + textwrap.dedent(code))
    environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'pytorch'}:{tmp_path}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, ROOT / "tests" / "in_turn.py", "2", "rank"]
    environment["CUDA_VISIBLE_DEVICES"] = ""
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    return result.stdout + result.stderr


def test_a_rank_that_exits_is_a_lost_connection_to_the_others(tmp_path):
    code = """
        from partial_fc_torch import CosFace, PartialFC
        from partial_fc_torch.collectives import default_collectives
        dist.init_process_group("gloo")
        layer = PartialFC(margin_softmax=CosFace(), num_classes=8, embedding_size=4)
        layer.learning_rate = 0.1
        layer.step(torch.ones(2, 4), torch.zeros(2, dtype=torch.int64))
        if dist.get_rank() == 1:
            os._exit(0)
        for call in (lambda: layer.step(torch.ones(2, 4), torch.zeros(2, dtype=torch.int64)),
                     lambda: default_collectives.gather_object("name", 1), lambda: default_collectives.max("name", 1)):
            try:
                call()
            except RuntimeError as error:
                print("lost" if default_collectives.backend.is_connection_error(error) else error, flush=True)
        os._exit(0)
    """
    assert two_ranks(tmp_path, code).split()[3:] == ["lost"] * 3


def test_objects_and_numbers_travel_over_gloo_beside_a_group_without_the_cpu(tmp_path):
    """As beside NCCL, which needs GPUs: this group takes CUDA tensors only."""
    code = """
        from partial_fc_torch.collectives import default_collectives
        dist.init_process_group("cuda:gloo")
        gathered = default_collectives.gather_object("name", {"rank": dist.get_rank()})
        largest = default_collectives.max("largest", dist.get_rank())
        default_collectives.barrier("end")
        if dist.get_rank() == 0:
            print(gathered, largest, flush=True)
        os._exit(0)
    """
    assert two_ranks(tmp_path, code).splitlines()[1:] == ["[{'rank': 0}, {'rank': 1}] 1.0"]


NCCL = "NCCL error in: NCCLUtils.cpp:77, unhandled error, version 2.27.3\n{}\nLast error:\n{}"
SYSTEM = "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error."
NO_SHARED_MEMORY = (SYSTEM, "Error while creating shared memory segment /dev/shm/nccl-3zV8Jq (size 9637888)")
REMOTE = ("ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.", "")


@pytest.mark.parametrize(
    "texts, lost",
    [
        (NO_SHARED_MEMORY, False),
        (("ncclInvalidUsage", "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000"), False),
        ((SYSTEM, "Bootstrap : no socket interface found"), False),
        (REMOTE, True),
        ((SYSTEM, "Call to recv from 10.0.0.2<4321> failed : Connection reset by peer"), True),
        ((SYSTEM, "Net : Connection closed by remote peer hostb<4321>"), True),
    ],
)
def test_errors_of_nccl_are_a_lost_connection_only_where_they_say_so(texts, lost):
    assert default_collectives.backend.is_connection_error(dist.DistBackendError(NCCL.format(*texts))) == lost


def test_the_text_of_nccl_is_printed_without_a_traceback(capfd, monkeypatch):
    def fail():
        raise dist.DistBackendError(text + "\nException raised from create at NCCLUtils.cpp:77")

    def exit_with(code):
        raise SystemExit(code)

    text = NCCL.format(*NO_SHARED_MEMORY).strip()
    monkeypatch.setattr("os._exit", exit_with)
    with pytest.raises(SystemExit, match="2"):
        run_rank(Collectives(TorchBackend()), fail)
    printed = capfd.readouterr().err
    assert "rank 0: NCCL error in" in printed and "/dev/shm/nccl-3zV8Jq" in printed
    assert "Exception raised" not in printed and "bug" not in printed


@pytest.mark.parametrize("inside, code", [("pass", 0), ("time.sleep(20)", 1)])
def test_the_limit_of_a_training_in_a_program_ends_with_it(inside, code):
    program = f"""
import time
from partial_fc_torch.collectives import default_collectives
with default_collectives.watch(0.5, 0):
    default_collectives.report_progress()
    {inside}
default_collectives.report_progress()
time.sleep(1)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == code, done.stderr
