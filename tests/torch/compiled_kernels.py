"""Compiles the layer's kernels for a compute capability, as a step on such a GPU would, and describes the result.

    python tests/torch/compiled_kernels.py 90 [one | transposed]

With "one", the kernels of a single step, otherwise of several; with "transposed", kernels that read the centers of a
product in an order that needs a slow transposition.

Prints a line of JSON for each kernel: name, registers, spills in loops, bytes of shared memory, numbers of tensor core
instructions by kind, numbers of waits for Hopper's tensor cores that leave instructions in flight (overlaps) and that
do not (drains), whether it computes products, and whether it was compiled by the comparison of the first step, or only
by steps of other sizes.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from partial_fc_torch import ArcFace, CombinedMarginLoss, CurricularFace
from partial_fc_torch.layer.exchange import LayerExchange
from partial_fc_torch.layer.kernels import selfcheck, triton_passes
from partial_fc_torch.layer.kernels.blocks import blocks_for
from partial_fc_torch.layer.kernels.choice import Form
from partial_fc_torch.layer.objectives import Softmax
from partial_fc_torch.layer.optimizers import SGD, Adagrad, AdamW
from partial_fc_torch.layer.products import products_of
from partial_fc_torch.layer.step import Loss
from planted import planted

TENSOR_CORES = {"wgmma": r"wgmma\.mma_async", "mma": r"\bmma\.sync", "tcgen05": r"tcgen05\.mma"}
# Type of the products, whether the kernels compute them, margin, optimizer, whether centers are gathered, and whether
# they have weights.
CASES = [
    ("float16", True, CurricularFace(), AdamW(), True, True),
    ("float16", False, ArcFace(), SGD(), False, False),
    ("bfloat16", True, ArcFace(), SGD(), True, False),
    ("tf32", False, CurricularFace(), AdamW(), False, True),
    ("float16", True, CombinedMarginLoss(64.0, 1.0, 0.0, 0.4, 0.3), Adagrad(), False, False),
]
TRANSPOSED = "logits.py", "chunk_columns[None, :] * E + at[:, None]", "chunk_columns[None, :] + at[:, None] * T"
# Batch and centers of steps: divisible by 16 or not, one row, one tile or several
SIZES = [(256, 1024), (256, 1000), (1, 64), (100, 40_000)]


class Compiled:
    """Compiles a kernel instead of launching it."""

    def __init__(self, kernel, found):
        self.kernel, self.found, self.compared = kernel, found, True

    def __getitem__(self, grid):
        def compile_for(*arguments, **options):
            compiled = self.kernel.warmup(*arguments, grid=grid, **options)
            if compiled.hash not in self.found:
                self.found[compiled.hash] = describe(self.kernel.__name__, compiled) | {
                    "compared": self.compared,
                    "fused": options.get("FUSED", False),
                }

        return compile_for


def describe(name, compiled):
    tools = Path(triton.__file__).parent / "backends/nvidia/bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(compiled.asm["cubin"])
        commands = [[tools / "cuobjdump", each, file.name] for each in ("--dump-resource-usage", "-sass")]
        usage, sass = (subprocess.run(each, capture_output=True, text=True, check=True).stdout for each in commands)
    cores = {kind: len(re.findall(pattern, compiled.asm["ptx"])) for kind, pattern in TENSOR_CORES.items()}
    registers = int(re.search(r"REG:(\d+)", usage)[1])
    in_flight = re.findall(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x(\w+)", sass)
    waits = {"drains": in_flight.count("0"), "overlaps": len(in_flight) - in_flight.count("0")}
    sizes = {"registers": registers, "spills": spills(sass), "shared": compiled.metadata.shared}
    return {"kernel": name, **sizes, **cores, **waits}


def spills(sass):
    """Counts loads and stores of spilled registers inside loops; those outside cost nothing."""
    instructions = [(int(at, 16), text) for at, text in re.findall(r"/\*([0-9a-f]{4,6})\*/\s+(.*?);", sass)]
    end = max(at for at, text in instructions if "EXIT" in text)  # only waits for barriers follow
    branches = [(int(to[1], 16), at) for at, text in instructions if (to := re.search(r"\bBRA\b.* 0x(\w+)", text))]
    loops = [(to, at) for to, at in branches if to < at < end]
    moved = [at for at, text in instructions if re.search(r"\b(LDL|STL)\b", text)]
    return sum(any(start <= at <= stop for start, stop in loops) for at in moved)


def main(capability, cases, triton_passes=triton_passes, selfcheck=selfcheck):
    found = {}
    target = GPUTarget("cuda", capability, 32)
    driver.set_active(
        SimpleNamespace(
            get_current_target=lambda: target, get_current_device=lambda: 0, get_current_stream=lambda device: 0
        )
    )
    kernels = []
    for name in ("unit_rows_kernel", "statistics_kernel", "logit_gradients_kernel", "update_kernel"):
        kernels.append(Compiled(getattr(triton_passes, name), found))
        setattr(triton_passes, name, kernels[-1])
    selfcheck._require = lambda *numbers: None  # there are no results to compare
    LayerExchange.checked_loss = lambda *arguments: (0.0, [])
    for dtype, fused, margin, optimizer, *kind in cases:
        blocks = blocks_for(divmod(capability, 10), 132, 50 << 20, fused, margin.slopes_negatives)
        loss = Loss(margin, Softmax(), products_of(dtype, margin.scale))
        passes = triton_passes.TritonPasses(loss, 0, blocks, fused)
        form = Form(torch.device("cpu"), torch.float32, 1, *kind)
        selfcheck.TorchPasses = lambda *arguments, passes=passes: passes
        selfcheck.require_agreement(passes, form, 512, optimizer)
        for kernel in kernels:
            kernel.compared = False
        for batch, number in SIZES:
            problem = selfcheck._Problem(form, batch, number, 512)
            problem.run(passes, *problem.copies(optimizer))
        for kernel in kernels:
            kernel.compared = True
    for kernel in found.values():
        print(json.dumps(kernel))


if __name__ == "__main__":
    cases, modules = CASES[:1] if "one" in sys.argv else CASES, []
    if "transposed" in sys.argv:
        copy = planted(Path(tempfile.mkdtemp()) / "kernels", "partial_fc_torch.layer.kernels", TRANSPOSED)
        cases, modules = [("tf32", True, *CASES[1][2:])], [copy("triton_passes"), copy("selfcheck")]
    main(int(sys.argv[1]), cases, *modules)
