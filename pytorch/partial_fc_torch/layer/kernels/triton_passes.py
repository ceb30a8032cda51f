"""Both passes with the kernels of this folder.

Memory traffic of a step: the forward pass reads each center of 4E bytes once, the backward pass reads it once more, and
the update writes it, and reads and writes its states. The gradients by the logits and by the centers of a chunk are
used immediately, and stay in the L2 cache if it is large enough.

Shapes: G global batch, H = G rounded up to whole tiles, S centers of the step, T centers of a chunk, E embedding.
"""

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.autograd.graph import increment_version
from torch.nn.functional import pad

from ..gradients import GradientSink
from ..margins import CombinedMarginLoss, CurricularFace, Margin
from ..objectives import LogSumExp
from ..optimizers import SGD, Adagrad, AdamW, RowUpdate
from ..rows import RowIndex, TileGradient, gather_rows
from ..step import Loss, Step
from . import logits, update
from .backward import feature_gradient_kernel, logit_gradients_kernel
from .blocks import Blocks
from .forward import statistics_kernel
from .update import center_gradient_kernel

# A margin's ``negatives`` method -> the kernels' equivalent.
NEGATIVES = {
    Margin.negatives: logits.PLAIN.value,
    CombinedMarginLoss.negatives: logits.FILTER.value,
    CurricularFace.negatives: logits.CURRICULAR.value,
}


@dataclass
class Kept:
    """The data that both passes of a step share."""

    operand: torch.Tensor  # (H, E), the features as operand of the products, zero beyond the batch
    tile: dict[str, Any]  # arguments of both kernels that compute logits, by name
    inverse_norms: torch.Tensor  # (S,) of the centers, from the forward pass
    d_logits: torch.Tensor  # (H, T), gradients by the logits of a chunk
    parts: torch.Tensor  # (n, G, E), whose sum is the gradient by the unit rows of the features so far
    # Of the backward pass: the transposed operand, the labels sorted by column, and the gradient of a chunk's centers.
    transposed: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    labels: dict[str, torch.Tensor] = field(default_factory=dict)
    raw: torch.Tensor = field(default_factory=lambda: torch.empty(0))


class TritonPasses:
    """As TorchPasses, with fused kernels.

    Args:
        loss: its margin's ``negatives`` is in NEGATIVES, its objective has LogSumExp and does not change negatives, and
            its products are in TF32 or bfloat16.
        tile_classes: T, which is rounded up; 0 chooses.
        blocks: block sizes of the kernels.
    """

    def __init__(self, loss: Loss, tile_classes: int, blocks: Blocks):
        self.loss, self.tile_classes, self.blocks = loss, tile_classes, blocks
        self.is_half = loss.products.dtype == "bfloat16"
        # The factor s, if the operand does not include it, see Products.operand.
        self._operand_scale = loss.products.scale if self.is_half else 1.0

    def statistics(self, step: Step) -> torch.Tensor:
        """See TorchPasses.statistics."""
        kept = step.kept = self._prepare(step)
        rows = len(step.features.unit)
        batch, tiles = -(-rows // self.blocks.batch), -(-len(step.sampled) // self.blocks.classes)
        splits = min(tiles, -(-2 * self.blocks.processors // batch))
        # Not parts of one array: Triton compiles a kernel for the alignment of its arguments, too.
        maxima, sums = (step.features.unit.new_empty(splits, rows) for _ in range(2))
        statistics_kernel[batch, splits](
            inverse_norms=kept.inverse_norms, maxima=maxima, sums=sums, **kept.tile, **self.blocks.options
        )
        return LogSumExp.combine(torch.stack([maxima, sums], dim=1).double())

    def num_tiles(self, step: Step) -> int:
        """See TorchPasses.num_tiles."""
        return -(-len(step.sampled) // step.kept.d_logits.shape[1])

    def start_gradients(self, step: Step) -> None:
        """See TorchPasses.start_gradients."""
        kept = step.kept
        kept.parts = self._label_parts(step)
        kept.transposed, kept.labels = kept.operand.t().contiguous(), self._sorted_labels(step)
        kept.raw = kept.operand.new_empty(kept.d_logits.shape[1], kept.operand.shape[1], dtype=torch.float32)

    def feature_gradient(self, step: Step) -> torch.Tensor:
        """See TorchPasses.feature_gradient."""
        summed: torch.Tensor = step.kept.parts.sum(dim=0)
        return summed

    def _prepare(self, step: Step) -> Kept:
        """Converts the kernels' arguments to the types that they read."""
        features, sampled, blocks = step.features, step.sampled, self.blocks
        (batch, embedding_size), number = features.unit.shape, len(sampled)
        size = min(
            blocks.chunk(batch, embedding_size, self.tile_classes), -(-number // blocks.classes) * blocks.classes
        )
        operand = pad(features.operand, (0, 0, 0, -batch % blocks.batch))
        margin, of_negatives = self.loss.margin, step.targets.of_negatives
        kind, threshold = NEGATIVES[type(margin).negatives], getattr(margin, "interclass_filtering_threshold", 0)
        tile = {
            "features": operand,
            "centers": sampled.weight,
            "index": sampled.rows,
            "label_columns": step.labels.columns.int(),
            "of_negatives": None if of_negatives is None else of_negatives.float(),
            "log_weights": step.log_weights,
            "operand_scale": self._operand_scale,
            "scale": margin.scale,
            "threshold": margin.scale * threshold,
            "G": batch,
            "S": number,
            "E": embedding_size,
            "GATHERED": sampled.rows is not None,
            "LABELS": step.labels.columns.shape[1],
            "NEGATIVES": kind if kind != logits.FILTER.value or threshold else logits.PLAIN.value,
            "WEIGHTED": step.log_weights is not None,
            "PRECISION": "tf32",
            "BG": blocks.batch,
            "BC": blocks.classes,
            "BK": min(blocks.inner, blocks.classes),
        }
        empty = features.unit.new_empty
        d_logits = operand.new_empty(len(operand), size)
        return Kept(operand, tile, inverse_norms=empty(number), d_logits=d_logits, parts=empty(0))

    def _label_parts(self, step: Step) -> torch.Tensor:
        """Returns the parts of the gradient by the features; the first one has the labels' contribution."""
        batch, embedding_size = step.features.unit.shape
        tiles = -(-batch // self.blocks.batch) * -(-embedding_size // self.blocks.embedding)
        splits = max(1, min(self.blocks.processors // tiles, step.kept.d_logits.shape[1] // self.blocks.inner))
        parts = step.features.unit.new_zeros(splits, batch, embedding_size)
        parts[0] = step.label_gradient()
        return parts

    def _sorted_labels(self, step: Step) -> dict[str, torch.Tensor]:
        """Returns the labels sorted by column, for center_gradient_kernel."""
        columns, order = step.labels.columns.flatten().sort(stable=True)
        starts = torch.arange(0, len(step.sampled) + self.blocks.centers, self.blocks.centers, device=columns.device)
        borders = torch.searchsorted(columns, starts)
        return {"order": order.int(), "sorted_columns": columns.int(), "borders": borders.int()}

    def add_feature_gradient(self, step: Step, number: int) -> None:
        """See TorchPasses.add_feature_gradient; computes the gradients by the logits of a chunk, too."""
        kept, blocks = step.kept, self.blocks
        (rows, size), (splits, batch, embedding_size) = kept.d_logits.shape, kept.parts.shape
        start = number * size
        tiles = -(-min(size, len(step.sampled) - start) // blocks.classes)
        logit_gradients_kernel[rows // blocks.batch, tiles](
            row_term=step.row_term.float(),
            d_logits=kept.d_logits,
            T=size,
            start=start,
            **kept.tile,
            **blocks.options,
        )
        feature_gradient_kernel[rows // blocks.batch * -(-embedding_size // blocks.embedding), splits](
            kept.d_logits,
            step.sampled.weight,
            step.sampled.rows,
            kept.parts,
            batch,
            len(step.sampled),
            size,
            start,
            tiles * blocks.classes // blocks.inner,
            **self._constants(step),
            BG=blocks.batch,
        )

    def add_center_gradient(self, step: Step, number: int, sink: GradientSink) -> None:
        """See TorchPasses.add_center_gradient; updates the centers itself if the kernel has the sink's update."""
        kept, blocks, sampled, fused = step.kept, self.blocks, step.sampled, fused_update(sink)
        (rows, size), centers = kept.d_logits.shape, len(sampled)
        start = number * size
        # The labels' rows must include s if and only if the operand does.
        in_float32 = step.features.unit if self.is_half else kept.operand
        center_gradient_kernel[(-(-min(size, centers - start) // blocks.centers),)](
            kept.d_logits,
            kept.transposed,
            in_float32,
            sampled.weight,
            sampled.rows,
            kept.inverse_norms,
            *(kept.labels[name] for name in ("order", "sorted_columns", "borders")),
            step.d_labels,
            kept.raw,
            *fused.states,
            self._operand_scale,
            1 / len(step.features.unit),
            *fused.rates,
            rows,
            centers,
            size,
            start,
            LABELS=step.labels.columns.shape[1],
            OPTIMIZER=fused.optimizer,
            **self._constants(step),
            BC=blocks.centers,
            BU=blocks.update,
        )
        if fused is GRADIENT_ALONE:
            part = slice(start, min(start + size, centers))
            index: RowIndex = part if sampled.rows is None else sampled.rows[part]
            weight, inverse_norm = gather_rows(sampled.weight, index), kept.inverse_norms[part]
            sink.add(TileGradient(index, weight, inverse_norm, kept.raw[: len(weight)], 1 / len(step.features.unit)))
        elif start + size >= centers:  # PyTorch does not see the kernel's writes
            for array in (sampled.weight, *sampled.states.values()):
                increment_version(array)

    def _constants(self, step: Step) -> dict[str, Any]:
        """Returns the compile-time arguments that both gradient kernels share."""
        shared = {name: step.kept.tile[name] for name in ("E", "GATHERED", "PRECISION")}
        return {**shared, "BE": self.blocks.embedding, "BK": self.blocks.inner, **self.blocks.options}


class FusedUpdate(NamedTuple):
    """Arguments of center_gradient_kernel for an update that it includes."""

    optimizer: int  # OPTIMIZER
    states: tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]  # first, second and updates
    rates: tuple[float, ...]  # step_size, decay, rate1, rate2, log_beta1, log_beta2 and eps


GRADIENT_ALONE = FusedUpdate(update.NONE.value, (None, None, None), (0.0,) * 7)


def fused_update(sink: GradientSink) -> FusedUpdate:
    """Returns the kernel's arguments for a sink; GRADIENT_ALONE if the kernel lacks its update."""
    if not isinstance(sink, RowUpdate):
        return GRADIENT_ALONE
    optimizer, rate, states = sink.optimizer, sink.learning_rate, sink.centers.states
    rates: tuple[float, ...]
    if type(optimizer) is SGD:  # a subclass may have another update
        sums_gradients = optimizer.momentum_convention == "gradients"
        step_size, gain = (-rate, 1.0) if sums_gradients else (1.0, -rate)
        rates = step_size, optimizer.weight_decay, optimizer.momentum, gain, 0.0, 0.0, 0.0
        return FusedUpdate(update.SGD.value, (states["weight_mom"], None, None), rates)
    if type(optimizer) is AdamW:
        first, second, updates = (states[name] for name in optimizer.states)
        logarithms = [math.log(beta) if beta else -math.inf for beta in optimizer.betas]
        complements = [1 - beta for beta in optimizer.betas]
        rates = rate, optimizer.weight_decay, *complements, *logarithms, optimizer.eps
        return FusedUpdate(update.ADAMW.value, (first, second, updates), rates)
    if type(optimizer) is Adagrad:
        rates = rate, optimizer.weight_decay, 0.0, 0.0, 0.0, 0.0, optimizer.eps
        return FusedUpdate(update.ADAGRAD.value, (None, None, states["weight_sum"]), rates)
    return GRADIENT_ALONE
