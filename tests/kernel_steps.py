"""Steps of a layer with its kernels and with PyTorch's operators, and faults that were planted into the kernels."""

from types import SimpleNamespace

import torch

from partial_fc_torch import ArcFace
from partial_fc_torch.layer.kernels import selfcheck, triton_passes
from partial_fc_torch.layer.kernels.blocks import SMALLEST
from partial_fc_torch.layer.kernels.choice import Form
from partial_fc_torch.layer.objectives import Softmax
from partial_fc_torch.layer.optimizers import SGD, RowUpdate
from partial_fc_torch.layer.products import products_of
from partial_fc_torch.layer.step import Loss
from partial_fc_torch.layer.torch_passes import TorchPasses

RATE = 0.02  # moves the centers by about their norm

# Name of a fault -> changes of the kernels' package, see planted.py
FAULTS = {
    "a store without the mask of the batch": [("backward.py", ", mask=(rows_of_batch < G)[:, None])", ")")],
    "no mask beyond the step": [("logits.py", "(columns < S)[None, :], logits, LOWEST", "True, logits, LOWEST")],
    "borders end early": [("triton_passes.py", "len(step.sampled) + rows, rows", "len(step.sampled), rows")],
    "a row number in 32 bits": [("logits.py", "mask=inside, other=0)", "mask=inside, other=0).to(tl.int32)")],
    "a shared partial maximum": [("forward.py", "tl.store(maxima + split * G +", "tl.store(maxima +")],
    "a stale unit row": [("update.py", "if COPIED:", "if COPIED == 2:")],
    "the labels' gradient after an update": [
        ("triton_passes.py", "step.label_gradient().mul_(kept.factor)", "torch.zeros_like(unit)"),
        ("triton_passes.py", "div_(step.kept.factor)", "div_(step.kept.factor).add_(step.label_gradient())"),
    ],
    "the running maximum is not read": [
        ("forward.py", "tl.load(maxima + split * G + batch)", "tl.zeros((BG,), tl.float32)"),
    ],
    "columns without the start of the chunk": [("backward.py", "start + chunk_columns,", "chunk_columns,")],
}


class Case(SimpleNamespace):
    """Sizes and form of steps, by default with partial blocks, several chunks, and several programs along each axis."""

    def __init__(self, **changes):
        small = {"batch": 7, "number": 33, "size": 10, "tile_classes": 16, "blocks": SMALLEST, "fused": True}
        form = {"margin": ArcFace(4.0), "dtype": "float16", "optimizer": SGD(), "gathered": False, "weighted": False}
        super().__init__(**small, **form, steps=2)
        vars(self).update(changes)

    def passes(self, kernels=triton_passes):
        """Returns the passes of a module; None for PyTorch's."""
        loss = Loss(self.margin, Softmax(), products_of(self.dtype, self.margin.scale))
        if kernels is None:
            return TorchPasses(loss, self.tile_classes, 0)
        return kernels.TritonPasses(loss, self.tile_classes, self.blocks, self.fused)

    def centers(self, problem):
        """Returns the centers of a selfcheck._Problem with states of the optimizer."""
        return problem.copies(self.optimizer)[0]

    @torch.no_grad()
    def results(self, passes):
        """Returns losses and gradients of the steps, and the changes of the centers and states, by name."""
        form = Form(torch.device("cpu"), torch.float32, 1, self.gathered, self.weighted)
        problem = selfcheck._Problem(form, self.batch, self.number, self.size)
        centers = self.centers(problem)
        arrays = {"weight": centers.weight, **centers.states}
        rows = slice(None) if centers.rows is None else centers.rows
        before = {name: array[rows].clone() for name, array in arrays.items()}
        update, results = RowUpdate(self.optimizer, centers, RATE), {}
        for number in range(self.steps):
            step, by_features = problem.run(passes, centers, update)
            results |= {f"log_sum_exp {number}": step.row_term, f"gradient by the features {number}": by_features}
        return results | {name: array[rows] - before[name] for name, array in arrays.items()}

    def require_agreement(self, found):
        """Compares results with those of PyTorch's operators; see selfcheck.py for the bound of a step."""
        bound = 4 * selfcheck.ROUNDOFF[self.dtype] * (1 + self.margin.scale / self.size**0.5)
        for name, value in self.results(self.passes(None)).items():
            unit = torch.ones_like(value) if name.startswith("log") else value
            selfcheck._require(name, found[name] - value, unit, self.steps * bound)
