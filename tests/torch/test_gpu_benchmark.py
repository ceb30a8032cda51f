"""benchmarks/gpu.py runs without a GPU; a variant that fails or times out does not affect the others."""

import os
import subprocess
import sys
import time

import pytest
import torch

from paths import ROOT

CPU = torch.device("cpu")


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT / "benchmarks")])
    import gpu

    return gpu


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(3100)
def test_all_tables_are_filled_by_fakes():
    command = [sys.executable, ROOT / "benchmarks" / "gpu.py", "--fake"]
    # Another test of this process may have enabled Triton's interpreter, which is slow.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=3000, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Checks against float64 on the CPU: none failed." in done.stdout and "Error" not in done.stdout
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    (layer,) = (row[3:] for row in rows if row[0] == "| 300")
    assert layer.count("not used") == 5  # kernels, as the notes say
    assert sum("ms, " in cell for cell in layer) == 7, layer
    assert "the kernels are for GPUs" in done.stdout
    assert [cell.count("images/s") for row in rows if row[0] == "| small" for cell in row[3:]] == [1]
    assert [row[1].count("GB/s") for row in rows if row[0] == "| 2"] == [3]


def test_a_layer_is_measured_as_one_with_kernels_if_it_has_used_them(gpu, monkeypatch):
    # Another test of this process may have enabled the interpreter of the kernels, which is slow.
    monkeypatch.setattr(sys.modules["layer_torch"], "EMBEDDING", 16)
    layer = gpu.product("float16", "mm")(8, 1.0, CPU)
    layer.learning_rate = 0.1
    layer.step(torch.ones(2, layer.embedding_size), torch.arange(2))
    (passes,) = layer._computation.chosen.values()
    assert gpu.uses_kernels(layer) == (type(passes).__name__ == "TritonPasses")


def test_a_form_that_fails_has_its_reason_in_the_table(gpu, caplog):
    def raising(error):
        def measure():
            raise error

        return measure

    later = time.monotonic() + 60
    assert gpu.attempt(raising(ModuleNotFoundError(name="liger_kernel")), later, CPU) == "liger_kernel missing"
    assert gpu.attempt(raising(torch.OutOfMemoryError()), later, CPU) == "out of memory"
    assert gpu.attempt(raising(RuntimeError("no such kernel\nmore")), later, CPU) == "RuntimeError"
    assert caplog.messages == ["RuntimeError: no such kernel\nmore"]
    assert gpu.attempt(raising(ValueError()), time.monotonic() - 1, CPU) == "no time"
