"""The layer's kernels compile for GPUs, without spills in loops, within shared memory, and with tensor cores.

Steps of any size run the kernels that the comparison of the first step has run, and compile none afterwards.

In a separate process, because other tests here may have enabled Triton's interpreter.
"""

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
# One GPU for each tensor core instruction, with the least shared memory; the others compile the kernels of one step.
ALL_KERNELS = (90, 100, 120)


@pytest.mark.parametrize(
    "capability, cases",
    [(90, "one")]
    + [pytest.param(80, "one", marks=pytest.mark.slow)]
    + [
        pytest.param(each, "all" if each in ALL_KERNELS else "one", marks=[pytest.mark.slow, pytest.mark.thorough])
        for each in GPUS
        if each != 80
    ],
)
@pytest.mark.timeout(3100)
def test_kernels_compile(tmp_path, capability, cases):
    search = os.pathsep.join(map(str, (ROOT, ROOT / "pytorch")))
    environment = {**os.environ, "PYTHONPATH": search, "TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"}
    command = [sys.executable, Path(__file__).with_name("compiled_kernels.py"), str(capability), cases]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=3000).stdout
    kernels = [json.loads(line) for line in output.splitlines()]
    shared, instruction = GPUS[capability]
    assert len({kernel["kernel"] for kernel in kernels}) == 4
    for kernel in kernels:
        assert not kernel["spills"], kernel
        assert kernel["shared"] <= shared << 10, kernel
        assert bool(kernel[instruction]) == kernel["fused"], kernel
        assert kernel["compared"], kernel
