"""Ranks with different facts are named, and changed code is detected."""

import shutil
import subprocess

import numpy as np
import pytest

from partial_fc.distributed.consistency import arrays_digest, code_digest, differences


@pytest.mark.parametrize(
    "values, message",
    [
        ([[1.0, 0.5], [1.0, 0.5], [1.0, 0.5]], None),
        ([0, 7], "seed differs between ranks: 7 on rank 1, but 0 on rank 0"),  # equal groups: the one without rank 0
        ([7, 0, 0], "seed differs between ranks: 7 on rank 0, but 0 on the others"),
        ([0, 7, 0, 7, 0], "seed differs between ranks: 7 on rank 1, but 0 on rank 0 (also different: rank 3)"),
        ([2, None], "seed differs between ranks: null on rank 1, but 2 on rank 0"),
    ],
)
def test_the_ranks_in_the_minority_are_named(values, message):
    facts = [{"code": "ab"} if value is None else {"code": "ab", "seed": value} for value in values]
    assert differences(facts) == message


def test_the_digest_of_arrays_covers_names_shapes_and_numbers():
    zeros, ones = np.zeros((2, 3)), np.ones(6)
    different = (
        *({"a": zeros, "b": ones}, {"a": ones, "b": zeros}, {"a": np.zeros((3, 2)), "b": ones}, {"c": zeros}, {}),
        *({"a": zeros, "c": ones}, {"a": zeros, "b": 2 * ones}),
    )
    assert len({arrays_digest(arrays) for arrays in different}) == len(different)
    assert arrays_digest(different[0]) == arrays_digest({"b": ones, "a": np.zeros((3, 2)).T.reshape(2, 3)})


@pytest.mark.parametrize(
    "change",
    [
        "printf 'b = 2\n' >deep/b.py",
        "mv a.py c.py",
        "mv deep/b.py b.py",
        "touch c.py",
        "mv a.py deep/b.py && touch a.py",
    ],
)
def test_the_digest_of_code_changes_with_the_code_only(tmp_path, change):
    original, copy = tmp_path / "original", tmp_path / "copy"
    (original / "deep").mkdir(parents=True)
    (original / "a.py").write_text("a = 1\n")
    (original / "deep" / "b.py").write_text("b = 1\n")
    shutil.copytree(original, copy)
    (copy / "notes.txt").write_text("no code")
    digest = code_digest([str(original)])
    assert code_digest([str(copy)]) == digest and len(digest) == 16
    subprocess.run(change, shell=True, cwd=copy, check=True)
    assert code_digest([str(copy)]) != digest
