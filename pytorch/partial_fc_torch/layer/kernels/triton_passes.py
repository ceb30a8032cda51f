"""Both passes with the kernels of this folder.

Memory traffic of a step: the forward pass reads each center of 4E bytes once, the backward pass reads it once more, and
the update writes it, and reads and writes its states. The gradients by the logits and by the centers of a chunk are
used immediately, and stay in the L2 cache if it is large enough.

Shapes: G global batch, H = G rounded up to whole tiles, S centers of the step, T centers of a chunk, E embedding.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd.graph import increment_version
from torch.nn.functional import pad

from ..gradients import GradientSink
from ..margins import CombinedMarginLoss, CurricularFace, Margin
from ..objectives import LogSumExp, Objective
from ..passes import Step
from ..products import Float32Products, HalfProducts
from ..rows import RowIndex, TileGradient, gather_rows
from . import logits
from .backward import feature_gradient_kernel, logit_gradients_kernel
from .blocks import Blocks
from .forward import statistics_kernel
from .fused_update import GRADIENT_ALONE, fused_update
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
    """See Passes.

    Args:
        margin: a margin whose ``negatives`` is in NEGATIVES.
        objective: an objective whose term is LogSumExp, and which does not change negatives.
        products: Float32Products select TF32, HalfProducts select bfloat16.
        tile_classes: T, which is rounded up; 0 chooses.
        blocks: block sizes of the kernels.
    """

    def __init__(
        self,
        margin: Margin,
        objective: Objective,
        products: Float32Products | HalfProducts,
        tile_classes: int,
        blocks: Blocks,
    ):
        self.margin, self.objective, self.products = margin, objective, products
        self.tile_classes, self.blocks = tile_classes, blocks

    def statistics(self, step: Step) -> torch.Tensor:
        """See Passes.statistics."""
        kept = step.kept = self._prepare(step)
        rows = len(step.features.unit)
        batch, tiles = -(-rows // self.blocks.batch), -(-len(step.sampled) // self.blocks.classes)
        splits = min(tiles, -(-2 * self.blocks.processors // batch))
        maxima, sums = step.features.unit.new_empty(2, splits, rows)
        statistics_kernel[batch, splits](
            inverse_norms=kept.inverse_norms, maxima=maxima, sums=sums, **kept.tile, **self.blocks.options
        )
        return LogSumExp.combine(torch.stack([maxima, sums], dim=1).double())

    def num_tiles(self, step: Step) -> int:
        """See Passes.num_tiles."""
        return -(-len(step.sampled) // step.kept.d_logits.shape[1])

    def start_gradients(self, step: Step) -> None:
        """See Passes.start_gradients."""
        kept = step.kept
        kept.parts = self._label_parts(step)
        kept.transposed, kept.labels = kept.operand.t().contiguous(), self._sorted_labels(step)
        kept.raw = kept.operand.new_empty(kept.d_logits.shape[1], kept.operand.shape[1], dtype=torch.float32)

    def feature_gradient(self, step: Step) -> torch.Tensor:
        """See Passes.feature_gradient."""
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
        of_negatives, threshold = step.targets.of_negatives, getattr(self.margin, "interclass_filtering_threshold", 0)
        kind = NEGATIVES[type(self.margin).negatives]
        tile = {
            "features": operand,
            "centers": sampled.centers.weight,
            "index": sampled.rows,
            "label_columns": step.labels.columns.int(),
            "of_negatives": None if of_negatives is None else of_negatives.float(),
            "log_weights": step.log_weights,
            "operand_scale": self._operand_scale,
            "scale": self.margin.scale,
            "threshold": self.margin.scale * threshold,
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

    @property
    def _operand_scale(self) -> float:
        """The factor s, if the operand does not include it, see `Float32Products.operand`; otherwise 1."""
        return 1.0 if isinstance(self.products, Float32Products) else self.products.scale

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
        """See Passes.add_feature_gradient; computes the gradients by the logits of a chunk, too."""
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
            step.sampled.centers.weight,
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
        """See Passes.add_center_gradient; updates the centers itself if the kernel has the sink's update."""
        kept, blocks, sampled, update = step.kept, self.blocks, step.sampled, fused_update(sink)
        (rows, size), centers = kept.d_logits.shape, len(sampled)
        start = number * size
        # The labels' rows must include s if and only if the operand does.
        in_float32 = kept.operand if isinstance(self.products, Float32Products) else step.features.unit
        center_gradient_kernel[(-(-min(size, centers - start) // blocks.centers),)](
            kept.d_logits,
            kept.transposed,
            in_float32,
            sampled.centers.weight,
            sampled.rows,
            kept.inverse_norms,
            *(kept.labels[name] for name in ("order", "sorted_columns", "borders")),
            step.d_labels,
            kept.raw,
            *update.states,
            self._operand_scale,
            1 / len(step.features.unit),
            *update.rates,
            rows,
            centers,
            size,
            start,
            LABELS=step.labels.columns.shape[1],
            OPTIMIZER=update.optimizer,
            **self._constants(step),
            BC=blocks.centers,
            BU=blocks.update,
        )
        if update is GRADIENT_ALONE:
            part = slice(start, min(start + size, centers))
            index: RowIndex = part if sampled.rows is None else sampled.rows[part]
            weight, inverse_norm = gather_rows(sampled.centers.weight, index), kept.inverse_norms[part]
            sink.add(TileGradient(index, weight, inverse_norm, kept.raw[: len(weight)], 1 / len(step.features.unit)))
        elif start + size >= centers:  # PyTorch does not see the kernel's writes
            for array in (sampled.centers.weight, *sampled.centers.states.values()):
                increment_version(array)

    def _constants(self, step: Step) -> dict[str, Any]:
        """Returns the compile-time arguments that both gradient kernels share."""
        shared = {name: step.kept.tile[name] for name in ("E", "GATHERED", "PRECISION")}
        return {**shared, "BE": self.blocks.embedding, "BK": self.blocks.inner, **self.blocks.options}
