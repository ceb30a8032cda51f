import os

from partial_fc.launch import place, share_cores


def test_place_alone_and_under_each_launcher():
    assert place({}) == (0, 1, 0, 1)
    openmpi = {"RANK": "3", "SIZE": "8", "LOCAL_RANK": "1", "LOCAL_SIZE": "2"}
    assert place({f"OMPI_COMM_WORLD_{name}": value for name, value in openmpi.items()}) == (3, 8, 1, 2)
    assert place({f"HOROVOD_{name}": value for name, value in openmpi.items()}) == (3, 8, 1, 2)


def test_cores_are_divided_between_the_ranks_of_a_host():
    cores = len(os.sched_getaffinity(0))
    alone = {}
    assert share_cores(alone) == cores
    assert alone["OMP_NUM_THREADS"] == str(cores)
    ranks = {f"HOROVOD_{name}": "1" for name in ("RANK", "SIZE", "LOCAL_RANK")}
    ranks["HOROVOD_LOCAL_SIZE"] = str(2 * cores)
    assert share_cores(ranks) == 1
    assert share_cores({"OMP_NUM_THREADS": "7"}) == 7
