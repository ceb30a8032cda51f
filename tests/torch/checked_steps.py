"""Steps with the kernels under ttsem, which runs Triton's IR and finds accesses outside of tensors and races.

    PYTHONPATH=FOLDER_OF_TTSEM:tests:pytorch:. python tests/torch/checked_steps.py FOLDER

Prints in JSON what was found in cases of the kernels and in planted faults, by name. Copies of the kernels are written
to FOLDER.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

from ttsem.sanitize import KernelFault, session

from kernel_steps import FAULTS, Case
from partial_fc_torch import ArcFace, CombinedMarginLoss, CurricularFace
from partial_fc_torch.layer.kernels.blocks import SMALLEST, blocks_for
from partial_fc_torch.layer.optimizers import Adagrad, AdamW
from planted import planted

# The least blocks of products outside of the interpreter, and sizes with partial blocks
SMALL = {"blocks": replace(SMALLEST, batch=16, classes=16, inner=16), "batch": 19, "number": 41, "size": 24}
SMALL |= {"tile_classes": 32, "steps": 1}
OF_A_GPU = {"blocks": blocks_for((9, 0), 132, 50 << 20, True, False), "batch": 131, "number": 300, "size": 96}
CASES = {
    "fused": {},
    "mm, gathered": {"fused": False, "gathered": True},
    "fused, CurricularFace, AdamW, weighted": {"margin": CurricularFace(4.0), "optimizer": AdamW(), "weighted": True},
    "mm, filter, Adagrad": {
        "fused": False,
        "margin": CombinedMarginLoss(4.0, 1.0, 0.0, 0.4, 0.3),
        "optimizer": Adagrad(),
    },
    "fused, blocks of a GPU": {**OF_A_GPU, "tile_classes": 256, "margin": ArcFace()},
}


def fault(case, *kernels):
    """Returns what is found; None for nothing."""
    try:
        case.require_agreement(case.results(case.passes(*kernels)))
    except KernelFault as error:
        return f"{error.fault.kind} {error.fault.kernel} {error.fault.buffer}: {error.fault.source_text}"
    except ArithmeticError as error:
        return str(error)
    return None


def main(folder):
    with session(cc=90, cuda_is_cpu=False) as state:
        faults = {name: fault(Case(**{**SMALL, **changes})) for name, changes in CASES.items()}
        found = {}
        for number, (name, changes) in enumerate(FAULTS.items()):
            kernels = planted(folder / str(number), "partial_fc_torch.layer.kernels", *changes)("triton_passes")
            found[name] = fault(Case(**{**SMALL, "steps": 2}), kernels)
    faults["launches that are too large for the search for races"] = state.races_unchecked or None
    print(json.dumps([faults, found]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
