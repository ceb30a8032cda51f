"""The variables of launchers."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from partial_fc.distributed.env import RankInfo, deterministic_allreduce, rank_info, share_cores, use_shared_memory
from partial_fc.utils.cores import usable_cores
from paths import ROOT

TORCH = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
TORCHRUN = {**TORCH, "TORCHELASTIC_RUN_ID": "none"}
MPIRUN = {f"OMPI_COMM_WORLD_{name.upper()}": value for name, value in zip(RankInfo._fields, "1212")}


def horovodrun(size):
    return {
        f"HOROVOD_{name}": value for name, value in zip(("RANK", "LOCAL_RANK", "SIZE", "LOCAL_SIZE"), "00" + size * 2)
    }


@pytest.mark.parametrize(
    "environment, expected",
    [
        ({}, (0, 1, 0, 1)),
        (TORCHRUN, (3, 8, 1, 2)),
        (TORCH, (3, 8, 1, 2)),
        (MPIRUN, (1, 2, 1, 2)),
        (horovodrun("4"), (0, 4, 0, 4)),
        ({**MPIRUN, **TORCHRUN}, (3, 8, 1, 2)),  # mpirun starts one torchrun per host
        ({**TORCH, **MPIRUN}, (1, 2, 1, 2)),  # a job system's variables around mpirun
        ({"RANK": "3", "WORLD_SIZE": "8"}, (0, 1, 0, 1)),
    ],
)
def test_rank_info_of_each_launcher(environment, expected):
    assert rank_info(environment) == expected


@pytest.mark.parametrize("size, expected", [("2", None), ("3", "0")])
def test_only_sums_of_three_or_more_need_no_fusion(size, expected):
    environment = horovodrun(size)
    deterministic_allreduce(environment)
    assert environment.get("HOROVOD_FUSION_THRESHOLD") == expected


def test_cores_are_divided_between_the_ranks_of_a_host():
    alone = {}
    assert share_cores(alone) == usable_cores() == int(alone["OMP_NUM_THREADS"])
    assert share_cores({**horovodrun("2"), "HOROVOD_LOCAL_SIZE": str(2 * usable_cores())}) == 1
    assert share_cores({"OMP_NUM_THREADS": "7"}) == 7


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")
def test_a_rank_that_is_bound_to_a_core_has_one_thread():
    program = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
    program += "from partial_fc.distributed.env import cores_of_rank; print(cores_of_rank(1), cores_of_rank(1000))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == ["1", "1"], done.stderr


@pytest.mark.parametrize(
    "given, free, transport",
    [
        ({}, 1 << 30, "^openib,tcp"),
        ({"OMPI_MCA_btl": "^openib"}, 1 << 30, "^openib,tcp"),
        ({"OMPI_MCA_btl": "tcp,self"}, 1 << 30, "tcp,self"),
        ({}, 1 << 20, None),
        ({"OMPI_COMM_WORLD_SIZE": "4"}, 1 << 30, None),
    ],
    ids=["one host", "set by env.sh", "chosen by the user", "little shared memory", "two hosts"],
)
def test_the_ranks_of_one_host_do_not_listen(given, free, transport, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=free))
    environment = {**MPIRUN, **given}
    use_shared_memory(environment)
    assert environment.get("OMPI_MCA_btl") == transport and "OMPI_MCA_ess_singleton_isolated" not in environment
    alone = {}
    use_shared_memory(alone)
    assert alone["OMPI_MCA_ess_singleton_isolated"] == "1"
