"""Both passes with the kernels of this folder, and with PyTorch's matrix products.

A chunk of centers passes through these stages, which find each other's results in the L2 cache:

    forward:  unit rows -> cosines -> maxima and sums
    backward: unit rows -> cosines -> gradients D by the logits -> D w, D^T x -> update

All operands are unit rows or D, so their range is known: float16 holds them, if D is multiplied by `float16_factor`.
Memory traffic of a step: each pass reads every center of 4E bytes once, or its unit row of 2E bytes where a copy of
them is kept; the update reads and writes the center and its states.

Shapes: G global batch, S centers of the step, T centers of a chunk, E embedding.
"""

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import triton
from torch.autograd.graph import increment_version

from ..gradients import GradientSink
from ..half_products import float16_factor
from ..margins import CombinedMarginLoss, CurricularFace, Margin
from ..objectives import LogSumExp
from ..optimizers import SGD, Adagrad, AdamW, RowUpdate
from ..rows import RowIndex, TileGradient, gather_rows, inverse_norms
from ..step import Loss, Step
from . import logits, update
from .backward import logit_gradients_kernel
from .blocks import Blocks
from .forward import statistics_kernel, unit_rows_kernel
from .units import UnitRows
from .update import update_kernel

# A margin's ``negatives`` method -> the kernels' equivalent.
NEGATIVES = {
    Margin.negatives: logits.PLAIN.value,
    CombinedMarginLoss.negatives: logits.FILTER.value,
    CurricularFace.negatives: logits.CURRICULAR.value,
}


class Chunk(NamedTuple):
    """Some of the centers of a step."""

    start: int  # column of the step where it begins
    size: int  # T; the last one may extend beyond the step
    operand: torch.Tensor  # (T, E) unit rows, zero beyond the step
    left: torch.Tensor  # see tile_cosines


@dataclass
class Kept:
    """The data that both passes of a step share."""

    size: int  # T
    operand: torch.Tensor  # (G, E), the unit rows of the features as operand of the products
    units: torch.Tensor | None  # (N, E), the unit rows of the bank; None if they are computed for each chunk
    tile: dict[str, Any]  # arguments of both kernels that compute logits, by name
    # Of the backward pass, whose gradients are multiplied by a factor, see float16_factor:
    factor: torch.Tensor = field(default_factory=lambda: torch.empty(0))  # scalar
    row_term: torch.Tensor = field(default_factory=lambda: torch.empty(0))  # (G,), see logit_gradients_kernel
    d_unit: torch.Tensor = field(default_factory=lambda: torch.empty(0))  # (G, E), the gradient by the unit features
    labels: dict[str, torch.Tensor] = field(default_factory=dict)  # arguments of update_kernel, by name
    pending: tuple[Chunk, torch.Tensor] | None = None  # the chunk whose feature gradient was added last, and its D


class TritonPasses:
    """As TorchPasses, with Triton kernels between or around the matrix products.

    Args:
        loss: its margin's ``negatives`` is in NEGATIVES, its objective has LogSumExp and does not change negatives.
        tile_classes: T, which is rounded up; 0 chooses.
        blocks: block sizes of the kernels.
        fused: whether the kernels compute the cosines themselves, in registers; otherwise torch.mm writes them.
        unit_copy: see UnitRows.
    """

    def __init__(self, loss: Loss, tile_classes: int, blocks: Blocks, fused: bool, unit_copy: bool | None = None):
        self.loss, self.tile_classes, self.blocks, self.fused = loss, tile_classes, blocks, fused
        self.unit_rows = UnitRows(loss.products.unit_type, unit_copy)

    def statistics(self, step: Step) -> torch.Tensor:
        """See TorchPasses.statistics."""
        kept, blocks, batch = self._prepare(step), self.blocks, len(step.features.unit)
        step.kept = kept
        row_blocks = -(-batch // blocks.batch)
        # Kernels that only read need more programs to keep a multiprocessor busy than those with products.
        programs = (2 if self.fused else 8) * blocks.processors
        splits = max(1, min(kept.size // blocks.classes, programs // row_blocks))
        maxima = step.features.unit.new_full((splits, batch), logits.LOWEST.value)
        # Not parts of one array: Triton compiles a kernel for the alignment of its arguments, too.
        sums = torch.zeros_like(maxima)
        for number in range(self.num_tiles(step)):
            chunk = self._chunk(step, number)
            statistics_kernel[row_blocks, splits](
                **self._tile(step, chunk), maxima=maxima, sums=sums, tiles=chunk.size // blocks.classes
            )
        return LogSumExp.combine(torch.stack([maxima, sums], dim=1).double())

    def num_tiles(self, step: Step) -> int:
        """See TorchPasses.num_tiles."""
        return -(-len(step.sampled) // step.kept.size)

    def start_gradients(self, step: Step) -> None:
        """See TorchPasses.start_gradients."""
        kept, unit = step.kept, step.features.unit
        largest = step.largest
        if step.targets.of_negatives is not None and kept.tile["NEGATIVES"] == logits.CURRICULAR.value:
            largest = largest * (step.targets.of_negatives[1].abs().amax() + 2)  # a bound of its slopes
        is_float16 = self.loss.products.unit_type == torch.float16
        kept.factor = (float16_factor(largest) if is_float16 else torch.ones_like(largest)).to(unit.dtype)
        kept.d_unit = step.label_gradient().mul_(kept.factor)  # before an update changes the labels' centers
        kept.row_term = (step.row_term - kept.factor.log()).to(unit.dtype)
        columns, order = step.labels.columns.flatten().sort(stable=True)
        rows = self._rows_of_program(step)
        starts = torch.arange(0, len(step.sampled) + rows, rows, device=unit.device)
        kept.labels = {
            "order": order.int(),
            "sorted_columns": columns.int(),
            "borders": torch.searchsorted(columns, starts).int(),
            "d_labels": step.d_labels * kept.factor,
            "gain": self.loss.margin.scale / kept.factor,
        }

    def add_feature_gradient(self, step: Step, number: int) -> None:
        """See TorchPasses.add_feature_gradient; computes the gradients by the logits of a chunk, too."""
        kept, blocks, chunk = step.kept, self.blocks, self._chunk(step, number)
        d_logits = kept.operand.new_empty(len(kept.operand), chunk.size)
        logit_gradients_kernel[-(-len(kept.operand) // blocks.batch), chunk.size // blocks.classes](
            **self._tile(step, chunk), row_term=kept.row_term, d_logits=d_logits
        )
        kept.d_unit.add_(self.loss.products.mm(d_logits, chunk.operand))
        kept.pending = chunk, d_logits

    def feature_gradient(self, step: Step) -> torch.Tensor:
        """See TorchPasses.feature_gradient."""
        gradient: torch.Tensor = step.kept.d_unit.div_(step.kept.factor)
        return gradient

    def add_center_gradient(self, step: Step, number: int, sink: GradientSink) -> None:
        """See TorchPasses.add_center_gradient; updates the centers itself if the kernel has the sink's update."""
        kept, sampled, fused = step.kept, step.sampled, fused_update(sink)
        (chunk, d_logits), kept.pending = kept.pending, None
        raw = self.loss.products.mm(d_logits.t(), kept.operand)
        rows, updates = self._rows_of_program(step), fused.optimizer != update.NONE.value
        units, stop = kept.units if updates else None, min(chunk.start + chunk.size, len(sampled))
        update_kernel[(-(-(stop - chunk.start) // rows),)](
            raw,
            step.features.unit,
            sampled.weight,
            sampled.rows,
            **kept.labels,
            **fused.states._asdict(),
            units=units,
            mean=1 / len(step.features.unit),
            **fused.rates._asdict(),
            S=len(sampled),
            start=chunk.start,
            LABELS=step.labels.columns.shape[1],
            OPTIMIZER=fused.optimizer,
            COPIED=units is not None,
            **self._of_rows(step),
        )
        if not updates:
            part = slice(chunk.start, stop)
            index: RowIndex = part if sampled.rows is None else sampled.rows[part]
            weight = gather_rows(sampled.weight, index)
            sink.add(TileGradient(index, weight, inverse_norms(weight), raw[: len(weight)], 1 / len(kept.operand)))
        elif stop == len(sampled):  # PyTorch does not see the kernel's writes
            for array in (sampled.weight, *sampled.states.values()):
                increment_version(array)
            self.unit_rows.updated(sampled)

    def _prepare(self, step: Step) -> Kept:
        """Converts the kernels' arguments to the types that they read."""
        sampled, margin, products = step.sampled, self.loss.margin, self.loss.products
        (batch, embedding_size), of_negatives = step.features.unit.shape, step.targets.of_negatives
        classes = self.blocks.classes
        size = min(self.blocks.chunk(batch, embedding_size, self.tile_classes), -(-len(sampled) // classes) * classes)
        kind, threshold = NEGATIVES[type(margin).negatives], getattr(margin, "interclass_filtering_threshold", 0)
        tile = {
            "label_columns": step.labels.columns.int(),
            "of_negatives": None if of_negatives is None else of_negatives.float(),
            "log_weights": step.log_weights,
            "scale": margin.scale,
            "threshold": margin.scale * threshold,
            "G": batch,
            "S": len(sampled),
            "E": embedding_size,
            "FUSED": self.fused,
            "LABELS": step.labels.columns.shape[1],
            "NEGATIVES": kind if kind != logits.FILTER.value or threshold else logits.PLAIN.value,
            "WEIGHTED": step.log_weights is not None,
            "PRECISION": "tf32" if products.dtype == "tf32" else "ieee",
            "BG": self.blocks.batch,
            "BC": classes,
            "BK": self.blocks.inner,
            **self.blocks.options,
        }
        operand = step.features.unit.to(products.unit_type)
        return Kept(size, operand, self.unit_rows.of(sampled, classes), tile)

    def _chunk(self, step: Step, number: int) -> Chunk:
        """Returns a chunk with the unit rows of its centers and, unless the kernels compute them, its cosines."""
        kept, sampled, classes = step.kept, step.sampled, self.blocks.classes
        start = number * kept.size
        size = min(kept.size, -(-(len(sampled) - start) // classes) * classes)
        if kept.units is not None and sampled.rows is None:
            operand = kept.units[start : start + size]
        else:
            operand = kept.operand.new_empty(size, kept.operand.shape[1])
            of_rows = self._of_rows(step)
            unit_rows_kernel[(-(-size // of_rows["BR"]),)](
                sampled.weight if kept.units is None else kept.units,
                sampled.rows,
                operand,
                len(sampled),
                start,
                UNIT=kept.units is not None,
                **of_rows,
            )
        left = kept.operand if self.fused else self.loss.products.mm(kept.operand, operand.t())
        return Chunk(start, size, operand, left)

    def _tile(self, step: Step, chunk: Chunk) -> dict[str, Any]:
        """Returns the arguments of both kernels that compute logits."""
        return {
            "left": chunk.left,
            "operand": chunk.operand if self.fused else None,
            "T": chunk.size,
            "start": chunk.start,
            **step.kept.tile,
        }

    def _of_rows(self, step: Step) -> dict[str, Any]:
        """Returns the compile-time arguments of both kernels that hold whole rows."""
        embedding_size = step.features.unit.shape[1]
        sizes = {"BR": self._rows_of_program(step), "WIDTH": triton.next_power_of_2(embedding_size)}
        return {"E": embedding_size, "GATHERED": step.sampled.rows is not None, **sizes}

    def _rows_of_program(self, step: Step) -> int:
        return self.blocks.rows(triton.next_power_of_2(step.features.unit.shape[1]))


class States(NamedTuple):
    """The states of an optimizer, by their names in update_kernel."""

    first: torch.Tensor | None = None
    second: torch.Tensor | None = None
    updates: torch.Tensor | None = None


class Rates(NamedTuple):
    """The numbers of an update, by their names in update_kernel."""

    step_size: float = 0.0
    decay: float = 0.0
    rate1: float = 0.0
    rate2: float = 0.0
    log_beta1: float = 0.0
    log_beta2: float = 0.0
    eps: float = 0.0


class FusedUpdate(NamedTuple):
    """Arguments of update_kernel for an update that it includes."""

    optimizer: int  # OPTIMIZER
    states: States
    rates: Rates


GRADIENT_ALONE = FusedUpdate(update.NONE.value, States(), Rates())


def fused_update(sink: GradientSink) -> FusedUpdate:
    """Returns the kernel's arguments for a sink; GRADIENT_ALONE if the kernel lacks its update."""
    if not isinstance(sink, RowUpdate) or sink.centers.weight.dtype != torch.float32:
        return GRADIENT_ALONE
    optimizer, rate, states = sink.optimizer, sink.learning_rate, sink.centers.states
    if type(optimizer) is SGD:  # a subclass may have another update
        sums_gradients = optimizer.momentum_convention == "gradients"
        step_size, gain = (-rate, 1.0) if sums_gradients else (1.0, -rate)
        rates = Rates(step_size, optimizer.weight_decay, optimizer.momentum, gain)
        return FusedUpdate(update.SGD.value, States(first=states["weight_mom"]), rates)
    if type(optimizer) is AdamW:
        rate1, rate2 = (1 - beta for beta in optimizer.betas)
        log_beta1, log_beta2 = (math.log(beta) if beta else -math.inf for beta in optimizer.betas)
        rates = Rates(rate, optimizer.weight_decay, rate1, rate2, log_beta1, log_beta2, optimizer.eps)
        return FusedUpdate(update.ADAMW.value, States(*(states[name] for name in optimizer.states)), rates)
    if type(optimizer) is Adagrad:
        rates = Rates(rate, optimizer.weight_decay, eps=optimizer.eps)
        return FusedUpdate(update.ADAGRAD.value, States(updates=states["weight_sum"]), rates)
    return GRADIENT_ALONE
