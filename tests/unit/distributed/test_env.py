import os
import subprocess
import sys

import pytest

from partial_fc.distributed.env import addresses_in, deterministic_allreduce, name_interfaces, place, share_cores
from paths import ROOT


def test_place_alone_and_under_each_launcher():
    assert place({}) == (0, 1, 0, 1)
    openmpi = {"RANK": "3", "SIZE": "8", "LOCAL_RANK": "1", "LOCAL_SIZE": "2"}
    assert place({f"OMPI_COMM_WORLD_{name}": value for name, value in openmpi.items()}) == (3, 8, 1, 2)
    assert place({f"HOROVOD_{name}": value for name, value in openmpi.items()}) == (3, 8, 1, 2)


@pytest.mark.parametrize("size, expected", [(1, {}), (2, {}), (3, {"HOROVOD_FUSION_THRESHOLD": "0"})])
def test_sums_of_three_are_to_be_alike(size, expected):
    environment = {"HOROVOD_RANK": "0", "HOROVOD_SIZE": str(size), "HOROVOD_LOCAL_RANK": "0"}
    environment["HOROVOD_LOCAL_SIZE"] = str(size)
    before = dict(environment)
    deterministic_allreduce(environment)
    assert environment == {**before, **expected}


def test_cores_are_divided_between_the_ranks_of_a_host():
    cores = len(os.sched_getaffinity(0))
    alone = {}
    assert share_cores(alone) == cores
    assert alone["OMP_NUM_THREADS"] == str(cores)
    ranks = {f"HOROVOD_{name}": "1" for name in ("RANK", "SIZE", "LOCAL_RANK")}
    ranks["HOROVOD_LOCAL_SIZE"] = str(2 * cores)
    assert share_cores(ranks) == 1
    assert share_cores({"OMP_NUM_THREADS": "7"}) == 7


@pytest.mark.parametrize(
    "given, named",
    [
        ({"OMPI_MCA_btl_tcp_if_include": "127.0.0.0/8"}, "=lo"),
        ({"OMPI_MCA_btl_tcp_if_include": "198.51.100.0/24,127.0.0.1/8"}, "=lo"),
        ({"HOROVOD_GLOO_IFACE": "lo"}, "=lo"),
        ({"OMPI_MCA_btl_tcp_if_include": "127.0.0.0/8", "NCCL_SOCKET_IFNAME": "eth5"}, "eth5"),
        ({}, None),
    ],
)
def test_nccl_is_told_this_hosts_interfaces_of_the_networks(given, named):
    name_interfaces(given)
    assert given.get("NCCL_SOCKET_IFNAME") == named


def test_addresses_are_those_in_the_networks():
    assert addresses_in(["127.0.0.0/8"]) == addresses_in(["lo"]) == {"lo": ["127.0.0.1"]}
    assert "127.0.0.1" not in [one for found in addresses_in([]).values() for one in found]
    for network in ("198.51.100.0/24", "ib9"):
        with pytest.raises(
            ValueError, match=f"this host has no interface in the network {network}, but: .*lo 127.0.0.1"
        ):
            addresses_in([network])
    with pytest.raises(ValueError, match="10.77.0.0/33 is no subnet such as 10.0.0.0/24"):
        addresses_in(["10.77.0.0/33"])


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")
def test_a_rank_that_is_bound_to_a_core_has_one_thread():
    program = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
    program += "from partial_fc.distributed.env import cores_of_rank; print(cores_of_rank(1), cores_of_rank(1000))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == ["1", "1"], done.stderr
