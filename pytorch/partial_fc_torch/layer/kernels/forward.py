"""The forward pass: maxima and sums of exponentials of the logits, none of which leaves the registers.

Shapes: G global batch, S centers of the step, BG rows of the batch and BC centers of a tile, E embedding.
"""

import triton
import triton.language as tl

from .logits import LOWEST, center_rows, tile_cosines, with_margin


@triton.jit
def statistics_kernel(
    features,
    centers,
    index,
    target_columns,
    target_logits,
    of_negatives,
    log_weights,
    inverse_norms,
    maxima,
    sums,
    operand_scale,
    scale,
    threshold,
    G,
    S,
    E: tl.constexpr,
    GATHERED: tl.constexpr,
    NEGATIVES: tl.constexpr,
    WEIGHTED: tl.constexpr,
    PRECISION: tl.constexpr,
    BG: tl.constexpr,
    BC: tl.constexpr,
    BK: tl.constexpr,
):
    """A program takes BG rows and every n-th tile of centers; n programs share the centers.

    Programs of the same tile run at the same time, so that all but the first find its centers in the L2 cache.

    Args:
        features: (G, E) operand of the products; ``operand_scale`` times it is s x.
        centers: (N, E) float32.
        index: (S,) int64, the rows of the step, if GATHERED.
        target_columns: (G,) int32, -1 for none; target_logits: (G,) float32.
        of_negatives: (2, G) float32, if NEGATIVES is CURRICULAR.
        log_weights: (S,) float32, if WEIGHTED.
        inverse_norms: (S,) float32, is written.
        maxima, sums: (n, G) float32, are written.
        scale: s; threshold: of the filter, times s.
    """
    split = tl.program_id(1)
    rows_of_batch = tl.program_id(0) * BG + tl.arange(0, BG)
    batch = tl.minimum(rows_of_batch, G - 1)
    maximum = tl.full((BG,), -float("inf"), tl.float32)
    total = tl.zeros((BG,), tl.float32)
    for tile in range(split, tl.cdiv(S, BC), tl.num_programs(1)):
        place = tile * BC + tl.arange(0, BC)
        columns = tl.minimum(place, S - 1)
        rows = center_rows(index, columns, GATHERED)
        cosines, inverse = tile_cosines(features, centers, batch, rows, E, BG, BC, BK, PRECISION)
        if tl.program_id(0) == 0:
            tl.store(inverse_norms + place, inverse, mask=place < S)
        logits, _, _ = with_margin(
            cosines * operand_scale,
            batch,
            columns,
            target_columns,
            target_logits,
            of_negatives,
            log_weights,
            scale,
            threshold,
            G,
            NEGATIVES,
            WEIGHTED,
        )
        logits = tl.where((place < S)[None, :], logits, LOWEST)
        highest = tl.maximum(maximum, tl.max(logits, axis=1))
        total = total * tl.exp(maximum - highest) + tl.sum(tl.exp(logits - highest[:, None]), axis=1)
        maximum = highest
    tl.store(maxima + split * G + rows_of_batch, maximum, mask=rows_of_batch < G)
    tl.store(sums + split * G + rows_of_batch, total, mask=rows_of_batch < G)
