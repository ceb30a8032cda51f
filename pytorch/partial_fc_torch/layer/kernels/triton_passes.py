"""Both passes with the kernels of this folder.

Memory traffic of a step: the forward pass reads each center of 4E bytes once, the backward pass reads it once more, and
the update writes it, and reads and writes its states. The gradients by the logits and by the centers of a chunk are
used immediately, and stay in the L2 cache if it is large enough.

Shapes: G global batch, H = G rounded up to whole tiles, S centers of the step, T centers of a chunk, E embedding.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import increment_version
from torch.nn.functional import pad

from ..margins import CombinedMarginLoss, CurricularFace, Margin
from ..passes import Result, Step
from ..products import Float32Products, HalfProducts
from ..rows import RowIndex, TileGradient, gather_rows
from . import logits
from .backward import feature_gradient_kernel, logit_gradients_kernel
from .blocks import Blocks
from .forward import statistics_kernel
from .fused_update import GRADIENT_ALONE, FusedUpdate, fused_update
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
    begun: bool = False  # whether d_logits and parts have been computed for the first chunk


class TritonPasses:
    """See Passes.

    Args:
        margin: a margin whose ``negatives`` is in NEGATIVES.
        products: Float32Products select TF32, HalfProducts select bfloat16.
        tile_classes: T, which is rounded up; 0 chooses.
        blocks: block sizes of the kernels.
    """

    def __init__(self, margin: Margin, products: Float32Products | HalfProducts, tile_classes: int, blocks: Blocks):
        self.margin, self.products = margin, products
        self.tile_classes, self.blocks = tile_classes, blocks

    def statistics(self, step: Step) -> tuple[torch.Tensor, torch.Tensor]:
        """See Passes.statistics."""
        kept = step.kept = self._prepare(step)
        batch, tiles = -(-len(step.held) // self.blocks.batch), -(-len(step.sampled) // self.blocks.classes)
        splits = min(tiles, -(-2 * self.blocks.processors // batch))
        maxima, sums = step.features.unit.new_empty(2, splits, len(step.held))
        statistics_kernel[batch, splits](
            inverse_norms=kept.inverse_norms, maxima=maxima, sums=sums, **kept.tile, **self.blocks.options
        )
        return maxima.double(), sums.double()

    def begin_gradients(self, step: Step) -> None:
        """See Passes.begin_gradients."""
        if step.kept:
            step.kept.parts = self._target_parts(step)
            self._features_of_chunk(step, 0)
            step.kept.begun = True

    def gradients(
        self, step: Step, receive: Callable[[TileGradient], None], complete: Callable[[torch.Tensor], Result]
    ) -> Result:
        """See Passes.gradients."""
        kept: Kept | None = step.kept
        if kept is None:
            return complete(torch.zeros_like(step.features.unit))
        if not kept.begun:
            self.begin_gradients(step)
        kept.begun = False
        update, sampled = fused_update(receive), step.sampled
        size, targets = kept.d_logits.shape[1], self._sorted_targets(step)
        raw = kept.operand.new_empty(size, kept.operand.shape[1], dtype=torch.float32)
        operand = kept.operand.t().contiguous()
        for start in range(0, len(sampled), size):
            if start:
                self._features_of_chunk(step, start)
            if start + size >= len(sampled):
                result = complete(kept.parts.sum(dim=0))
            self._centers_of_chunk(step, start, operand, targets, raw, update)
            if update is GRADIENT_ALONE:
                receive(self._tile_gradient(step, start, raw))
        if update is not GRADIENT_ALONE:  # PyTorch does not see the kernel's writes
            for array in (sampled.centers.weight, *sampled.centers.states.values()):
                increment_version(array)
        return result

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
            "target_columns": step.columns.int(),
            "target_logits": step.target_logits.float(),
            "of_negatives": None if of_negatives is None else of_negatives.float(),
            "log_weights": step.log_weights,
            "operand_scale": self._operand_scale,
            "scale": self.margin.scale,
            "threshold": self.margin.scale * threshold,
            "G": batch,
            "S": number,
            "E": embedding_size,
            "GATHERED": sampled.rows is not None,
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

    def _target_parts(self, step: Step) -> torch.Tensor:
        """Returns the parts of the gradient by the features; the first one has the targets' contribution."""
        batch, embedding_size = step.features.unit.shape
        tiles = -(-batch // self.blocks.batch) * -(-embedding_size // self.blocks.embedding)
        splits = max(1, min(self.blocks.processors // tiles, step.kept.d_logits.shape[1] // self.blocks.inner))
        parts = step.features.unit.new_zeros(splits, batch, embedding_size)
        columns, weight = step.columns.clamp(min=0), step.sampled.centers.weight
        rows = columns if step.sampled.rows is None else step.sampled.rows[columns]
        factors = torch.where(step.held, step.d_targets * step.kept.inverse_norms[columns], 0.0)
        torch.mul(weight[rows], factors[:, None], out=parts[0])
        return parts

    def _sorted_targets(self, step: Step) -> dict[str, torch.Tensor]:
        """Returns the targets sorted by column, for center_gradient_kernel."""
        columns, order = step.columns.sort(stable=True)
        starts = torch.arange(0, len(step.sampled) + self.blocks.centers, self.blocks.centers, device=columns.device)
        borders = torch.searchsorted(columns, starts)
        return {"order": order.int(), "sorted_columns": columns.int(), "borders": borders.int()}

    def _features_of_chunk(self, step: Step, start: int) -> None:
        """Computes the gradients by the logits of a chunk, and adds its gradient by the features."""
        kept, blocks = step.kept, self.blocks
        (rows, size), (splits, batch, embedding_size) = kept.d_logits.shape, kept.parts.shape
        tiles = -(-min(size, len(step.sampled) - start) // blocks.classes)
        logit_gradients_kernel[rows // blocks.batch, tiles](
            log_sum_exp=step.log_sum_exp.float(),
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

    def _centers_of_chunk(
        self,
        step: Step,
        start: int,
        operand: torch.Tensor,
        targets: dict[str, torch.Tensor],
        raw: torch.Tensor,
        update: FusedUpdate,
    ) -> None:
        """Computes the gradient by the centers of a chunk, and updates them."""
        kept, blocks, number = step.kept, self.blocks, len(step.sampled)
        rows, size = kept.d_logits.shape
        # The targets' rows must include s if and only if the operand does.
        in_float32 = kept.operand if isinstance(self.products, Float32Products) else step.features.unit
        center_gradient_kernel[(-(-min(size, number - start) // blocks.centers),)](
            kept.d_logits,
            operand,
            in_float32,
            step.sampled.centers.weight,
            step.sampled.rows,
            kept.inverse_norms,
            *(targets[name] for name in ("order", "sorted_columns", "borders")),
            step.d_targets,
            raw,
            *update.states,
            self._operand_scale,
            1 / len(step.held),
            *update.rates,
            rows,
            number,
            size,
            start,
            OPTIMIZER=update.optimizer,
            **self._constants(step),
            BC=blocks.centers,
            BU=blocks.update,
        )

    def _constants(self, step: Step) -> dict[str, Any]:
        """Returns the compile-time arguments that both gradient kernels share."""
        shared = {name: step.kept.tile[name] for name in ("E", "GATHERED", "PRECISION")}
        return {**shared, "BE": self.blocks.embedding, "BK": self.blocks.inner, **self.blocks.options}

    def _tile_gradient(self, step: Step, start: int, raw: torch.Tensor) -> TileGradient:
        """Returns the gradient of a chunk for a receiver whose update the kernel lacks."""
        part, sampled = slice(start, min(start + len(raw), len(step.sampled))), step.sampled
        rows: RowIndex = part if sampled.rows is None else sampled.rows[part]
        weight, inverse_norms = gather_rows(sampled.centers.weight, rows), step.kept.inverse_norms[part]
        return TileGradient(rows, weight, inverse_norms, raw[: len(weight)], 1 / len(step.held))
