"""The kernels with the blocks of a GPU, their programs in any order, and the faults that this finds.

In Triton's interpreter, see any_order in interpreted.py.
"""

import itertools

import pytest
import torch

import interpreted
from kernel_steps import FAULTS, Case
from partial_fc_torch import ArcFace, CurricularFace
from partial_fc_torch.layer.kernels.blocks import blocks_for
from partial_fc_torch.layer.optimizers import SGD, AdamW
from partial_fc_torch.layer.rows import StepCenters
from planted import planted

# Fault of kernel_steps.py -> its error here; the others change results.
FOUND = {
    "a store without the mask of the batch": "logit_gradients_kernel writes .* outside of d_logits",
    "borders end early": "update_kernel reads .* outside of borders",
    "a row number in 32 bits": "unit_rows_kernel reads .* outside of",
    "a shared partial maximum": "programs of statistics_kernel share 7 elements of maxima",
}


@pytest.mark.parametrize(
    "fused, margin, optimizer, gathered", [(True, ArcFace(), AdamW(), False), (False, CurricularFace(), SGD(), True)]
)
def test_the_blocks_of_a_gpu_agree_with_pytorch_in_any_order(fused, margin, optimizer, gathered):
    """131 rows, 300 centers in chunks of 256, and 96 numbers are no multiples of the blocks."""
    form = {"fused": fused, "margin": margin, "optimizer": optimizer, "gathered": gathered, "weighted": gathered}
    blocks = blocks_for((9, 0), 132, 50 << 20, fused, margin.slopes_negatives)
    case = Case(batch=131, number=300, size=96, tile_classes=256, blocks=blocks, steps=1, **form)
    ordinary = case.results(case.passes())
    case.require_agreement(ordinary)
    with interpreted.any_order(0):
        for name, value in case.results(case.passes()).items():
            assert torch.equal(value, ordinary[name]), name


class FarCase(Case):
    """A case whose rows are the last ones of arrays with more than 2**31 elements, in sparse files."""

    def centers(self, problem):
        """See Case."""
        centers, files = super().centers(problem), itertools.count()
        held = len(centers.weight)
        first = 2**31 // self.size

        def far(array):
            shape, file = (first + held, array.shape[1]), str(self.folder / str(next(files)))
            rows = torch.from_file(file, shared=True, size=shape[0] * shape[1], dtype=array.dtype).view(shape)
            rows[first:] = array
            return rows

        states = {name: far(state) for name, state in centers.states.items()}
        return StepCenters(far(centers.weight), states, centers.rows + first)


def found(case, kernels=None):
    """Runs a case, with the kernels of a module, and compares its results."""
    with interpreted.any_order(0):
        results = case.results(case.passes(*([kernels] if kernels else [])))
    case.require_agreement(results)


@pytest.mark.parametrize("fused", [True, False])
def test_programs_access_only_what_they_own(fused):
    found(Case(fused=fused, gathered=not fused, weighted=not fused))


def test_row_numbers_may_exceed_32_bits(tmp_path):
    found(FarCase(folder=tmp_path, gathered=True, dtype="float32", steps=1))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault, tmp_path):
    kernels = planted(tmp_path / "planted", "partial_fc_torch.layer.kernels", *FAULTS[fault])("triton_passes")
    case = Case()
    if fault == "a row number in 32 bits":
        case = FarCase(folder=tmp_path, gathered=True, dtype="float32", steps=1)
    error = (IndexError, RuntimeError) if fault in FOUND else ArithmeticError
    with pytest.raises(error, match=FOUND.get(fault, "differs by|the loss is nan")):
        found(case, kernels)
