"""Checkpoints read and saved again by other numbers of ranks are equal to the last bit."""

import sys

import numpy as np
import pytest
from groups import checkpoint_contents

from partial_fc.checkpoint import CheckpointFolder, read_manifest
from paths import ROOT, SOURCES


def contents(folder):
    """Returns the arrays of the newest checkpoint by name, and its manifest."""
    ((_, path),) = CheckpointFolder(str(folder), 1).complete()
    return checkpoint_contents(path)


@pytest.mark.slow
@pytest.mark.parametrize("chain, classes", [((1, 2, 3, 1), 23), ((4, 2), 7)])
def test_resharding_over_several_numbers_of_ranks_changes_no_bit(chain, classes, run, tmp_path):
    folders = []
    for number, ranks in enumerate(chain):
        source = folders[-1:]
        folders.append(tmp_path / str(number))
        command = [sys.executable, ROOT / "tests" / "commands" / "reshard.py", classes, folders[-1], *source]
        launcher = ["mpirun", "-q", "--oversubscribe", "-np", ranks] if ranks > 1 else []
        result = run(*launcher, *command, OMP_NUM_THREADS="1", PYTHONPATH=f"{SOURCES}:{ROOT}/tests/parallel/mx")
        assert result.returncode == 0, result.stdout + result.stderr
    expected, first = contents(folders[0])
    assert first.num_update == 4 and expected["weight_mom"].any()
    for folder, ranks in zip(folders, chain):
        found, manifest = contents(folder)
        assert [stop - start for start, stop in manifest.shards] == [
            classes // ranks + (rank < classes % ranks) for rank in range(ranks)
        ]
        assert (manifest.ranks, manifest.num_update) == (ranks, 4)
        assert found.keys() == expected.keys()
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array, err_msg=name)
    assert read_manifest(CheckpointFolder(str(folders[-1]), 1).complete()[0][1]).state == first.state
