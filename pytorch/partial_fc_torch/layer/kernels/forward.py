"""The forward pass: maxima and sums of exponentials of the logits, which never leave the registers.

Shapes: G global batch, S centers of the step, BG rows of the batch and BC centers of a tile, E embedding.
"""

import triton
import triton.language as tl

from .logits import LOWEST, center_rows, tile_cosines, with_margin


@triton.jit(do_not_specialize=["G", "S"])
def statistics_kernel(
    features,
    centers,
    index,
    label_columns,
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
    LABELS: tl.constexpr,
    NEGATIVES: tl.constexpr,
    WEIGHTED: tl.constexpr,
    PRECISION: tl.constexpr,
    BG: tl.constexpr,
    BC: tl.constexpr,
    BK: tl.constexpr,
):
    """Each program computes BG rows with every n-th tile of centers, so n programs cover all centers.

    Programs of the same tile run at the same time, so all but the first find its centers in the L2 cache.

    Args:
        features: (G, E) operand of the products; multiplied by ``operand_scale`` it is s x.
        centers: (N, E) float32.
        index: (S,) int64, the rows of the step, if GATHERED.
        label_columns: (G, LABELS) int32, columns of the labels in the step, -1 for none.
        of_negatives: (2, G) float32, if NEGATIVES is CURRICULAR.
        log_weights: (S,) float32, if WEIGHTED.
        inverse_norms: (S,) float32 output.
        maxima, sums: (n, G) float32 outputs.
        scale: s.
        threshold: s times the threshold of the filter.
    """
    split = tl.program_id(1)
    rows_of_batch = tl.program_id(0) * BG + tl.arange(0, BG)
    batch = tl.minimum(rows_of_batch, G - 1)
    maximum = tl.full((BG,), -float("inf"), tl.float32)
    total = tl.zeros((BG,), tl.float32)
    for tile in range(split, tl.cdiv(S, BC), tl.num_programs(1)):
        unclamped = tile * BC + tl.arange(0, BC)
        columns = tl.minimum(unclamped, S - 1)
        rows = center_rows(index, columns, GATHERED)
        cosines, inverse = tile_cosines(features, centers, batch, rows, E, BG, BC, BK, PRECISION)
        if tl.program_id(0) == 0:
            tl.store(inverse_norms + unclamped, inverse, mask=unclamped < S)
        logits, _ = with_margin(
            cosines * operand_scale,
            batch,
            columns,
            label_columns,
            of_negatives,
            log_weights,
            scale,
            threshold,
            G,
            LABELS,
            NEGATIVES,
            WEIGHTED,
        )
        logits = tl.where((unclamped < S)[None, :], logits, LOWEST)
        # Rescales the running sum to the new maximum (online softmax).
        highest = tl.maximum(maximum, tl.max(logits, axis=1))
        total = total * tl.exp(maximum - highest) + tl.sum(tl.exp(logits - highest[:, None]), axis=1)
        maximum = highest
    tl.store(maxima + split * G + rows_of_batch, maximum, mask=rows_of_batch < G)
    tl.store(sums + split * G + rows_of_batch, total, mask=rows_of_batch < G)
