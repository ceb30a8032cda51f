"""The layer's kernels compile for GPUs, without spills in loops, within shared memory, and with tensor cores.

Steps of any size run the kernels that the comparison of the first step has run, and compile none afterwards. Two
packages examine the compiled kernels further: ttsem runs Triton's intermediate code, and cuxray reads the machine code.

In separate processes, because other tests here may have enabled Triton's interpreter.
"""

import functools
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from paths import ROOT

# Compute capability -> (KiB of shared memory of a block, instruction of its tensor cores), from the CUDA C++
# programming guide, technical specifications per compute capability.
GPUS = {
    80: (163, "mma"),
    86: (99, "mma"),
    89: (99, "mma"),
    90: (227, "wgmma"),
    100: (227, "tcgen05"),
    120: (99, "mma"),
}
TOOLS = Path(importlib.util.find_spec("triton").origin).parent / "backends/nvidia/bin"
CUDA_13 = "cubins of CUDA 13"  # for 8.0, Triton uses ptxas of CUDA 12, whose cubins its nvdisasm reads only in part
THOROUGH = [pytest.mark.slow, pytest.mark.thorough]


def run(command, search=(), **environment):
    """Returns the output of a Python program that imports the trainer and the folders of ``search``."""
    search = os.pathsep.join(map(str, (ROOT, ROOT / "pytorch", ROOT / "tests", *search)))
    environment = {**os.environ, "PYTHONPATH": search, "TRITON_INTERPRET": "0", **environment}
    command = [sys.executable, *map(str, command)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=3000).stdout


@pytest.fixture(scope="session")
def compiled(tmp_path_factory):
    """A function that compiles kernels, once, and returns their descriptions and the folder of their cubins."""

    @functools.cache
    def compile_kernels(capability, cases):
        folder, environment = tmp_path_factory.mktemp("kernels"), {}
        if cases == CUDA_13:
            environment["TRITON_PTXAS_PATH"] = str(TOOLS / "ptxas-blackwell")
        command = [Path(__file__).with_name("compiled_kernels.py"), capability, cases]
        output = run(command, TRITON_CACHE_DIR=str(folder), **environment)
        return [json.loads(line) for line in output.splitlines()], folder

    return compile_kernels


@pytest.mark.parametrize(
    "capability, cases",
    [(90, "one")]
    + [pytest.param(80, "one", marks=pytest.mark.slow)]
    + [pytest.param(each, "all", marks=THOROUGH) for each in GPUS],
)
@pytest.mark.timeout(3100)
def test_kernels_compile(compiled, capability, cases):
    kernels, _ = compiled(capability, cases)
    shared, instruction = GPUS[capability]
    assert len({kernel["kernel"] for kernel in kernels}) == 4
    for kernel in kernels:
        assert not kernel["spills"], kernel
        assert kernel["shared"] <= shared << 10, kernel
        assert bool(kernel[instruction]) == kernel["fused"], kernel
        # The steps of a product overlap; only its end waits for all.
        assert (kernel["drains"], kernel["overlaps"] > 0) == (bool(kernel["wgmma"]),) * 2, kernel
        assert kernel["compared"], kernel


@pytest.fixture(scope="session")
def packages(tmp_path_factory):
    """The folder of ttsem and cuxray, which other tests must not see."""
    folder, pins = tmp_path_factory.mktemp("packages"), ROOT / "setup-utils/requirements/kernel-checks.txt"
    # ttsem declares Python 3.12, but works on 3.11.
    options = ["--quiet", "--no-deps", "--require-hashes", "--ignore-requires-python", "--target", folder, "-r", pins]
    try:
        run(["-m", "pip", "install", *options])
    except subprocess.CalledProcessError as error:
        pytest.skip(f"ttsem and cuxray cannot be installed: {error.stderr.strip().splitlines()[-1]}")
    return folder


# Fault of kernel_steps.py that does not only change results -> what ttsem finds
FOUND = {
    "a store without the mask of the batch": "oob_write logit_gradients_kernel d_logits",
    "borders end early": "oob_read update_kernel borders",
    "a shared partial maximum": "race statistics_kernel maxima",
}
NOT_FOUND = "a row number in 32 bits"  # needs larger arrays, see test_kernel_order.py


@pytest.mark.slow
@pytest.mark.thorough
def test_accesses_and_races_in_the_intermediate_code(packages, tmp_path):
    """ttsem finds no fault in the kernels, and those that were planted."""
    command = [Path(__file__).with_name("checked_steps.py"), tmp_path / "copies"]
    output = run(command, [packages], TRITON_CACHE_DIR=str(tmp_path / "cache"))
    faults, planted = json.loads(output)
    assert set(faults.values()) == {None}, faults
    for name, fault in planted.items():
        assert name == NOT_FOUND if fault is None else FOUND.get(name, "differs by") in fault, name


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(3100)
@pytest.mark.parametrize("capability, cases", [(80, CUDA_13), (90, "all"), (100, "all"), (90, "transposed")])
def test_conflicts_in_shared_memory(capability, cases, compiled, packages):
    """No access has more than a 2-way conflict; cuxray finds those of a transposition, which are 16-way."""
    kernels, folder = compiled(capability, cases)
    tools = {"CUXRAY_TOOLCHAIN": str(TOOLS), "CUXRAY_NO_FETCH": "1"}
    output = run(["-m", "cuxray", "report", folder, "--fast", "--no-cache", "--json"], [packages], **tools)
    accesses = [kernel["access"] for unit in json.loads(output)["units"] for kernel in unit["kernels"]]
    assert len(accesses) == len(kernels)
    assert sum(access["analyzed_count"] for access in accesses) > 100
    ways = max(access["worst_bank_conflict_ways"] for access in accesses)
    assert ways == 16 if cases == "transposed" else ways <= 2
