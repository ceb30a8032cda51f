"""The benchmark of operators: the alternatives of a group return the same values, and the command runs."""

import json
import os
import subprocess
import sys
from itertools import groupby

import mxnet as mx
import numpy as np
import pytest

from paths import ROOT

BENCHMARKS = ROOT / "benchmarks"

# Converts the results of these calls to those of the other calls of their group.
CONVERTED = {
    "log_softmax": lambda logarithms, tile: np.exp(logarithms),
    "softmax (L, G), axis 0": lambda transposed, tile: transposed.T,
    "L2Normalization": lambda unit, tile: (tile.w * unit).sum(axis=1),
}


@pytest.fixture
def operators(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import operators

    return operators


def results(operators, name, call) -> list:
    """The results of a call on a fresh tile: the last one, which is smaller than the others."""
    tile = operators.divide(8, 300, 32, 128)[-1]
    tile.dt[...] = tile.d.T
    returned = call(tile)
    convert = CONVERTED.get(name, lambda values, tile: values)
    arrays = returned if isinstance(returned, tuple) else (returned,)
    host = [array.asnumpy() if isinstance(array, mx.nd.NDArray) else array.copy() for array in arrays]
    return [np.squeeze(convert(values, tile)) for values in host]


def test_calls_of_a_group_return_the_same(operators):
    for group, rows in groupby(operators.OPERATORS, key=lambda row: row[0]):
        (_, expected), *others = [(name, results(operators, name, call)) for _, name, call, _ in rows]
        assert others, group
        for name, got in others:
            # Sums of at most 44 products of numbers of about 1, each rounded to 2^-24.
            assert [array.shape for array in got] == [array.shape for array in expected], f"{group}: {name}"
            for values, other in zip(expected, got):
                np.testing.assert_allclose(other, values, rtol=1e-5, atol=1e-5, err_msg=f"{group}: {name}")


def test_command_prints_and_writes_the_table(tmp_path):
    args = ["--batch", "32", "--classes", "3000", "--embedding", "64", "--tile", "512", "--json", tmp_path / "table"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, BENCHMARKS / "operators.py", *args]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environ)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert "threads: 1; G, L, E = (32, 3000, 64)" in lines[0]
    rows = json.loads((tmp_path / "table").read_text())["rows"]
    assert len(lines) >= 2 + len(rows)
    for row, line in zip(rows, lines[2:]):
        assert line.startswith(row["group"]) and f"{row['name']} " in line and ("*" in line) == row["chosen"]
    milliseconds = {(row["group"], row["name"]): (row["whole_ms"], row["tiled_ms"]) for row in rows}
    # Factors of 7, 30 and 13 on an idle machine with the default shape; a loaded machine shows smaller ones.
    for group, slow, chosen in [("exp", "exp", "exp"), ("row maximum", "max", "max"), ("norms of W", "norm", "einsum")]:
        assert 0 < milliseconds[group, f"numpy {chosen}"][0] < milliseconds[group, slow][0], result.stdout
