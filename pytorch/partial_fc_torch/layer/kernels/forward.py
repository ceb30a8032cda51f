"""The forward pass of a chunk of centers: their unit rows, and maxima and sums of exponentials of the logits.

Shapes: G global batch, S centers of the step, T centers of the chunk, BG rows of the batch and BC centers of a tile,
BR centers of a program, E embedding.
"""

import triton
import triton.language as tl

from .logits import NORM_EPSILON, bank_rows, tile_cosines, with_margin


@triton.jit(do_not_specialize=["S", "start"])
def unit_rows_kernel(
    centers,
    index,
    operand,
    S,
    start,
    E: tl.constexpr,
    GATHERED: tl.constexpr,
    UNIT: tl.constexpr,
    BR: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Writes the unit rows of a chunk's centers.

    Args:
        centers: (N, E), the bank; its unit rows if UNIT.
        index: (S,) int64, the rows of the step, if GATHERED.
        operand: (T, E) output, 0 beyond the step.
        start: column of the step where the chunk begins.
        WIDTH: power of 2, at least E.
    """
    chunk_columns, at = tl.program_id(0) * BR + tl.arange(0, BR), tl.arange(0, WIDTH)
    inside = start + chunk_columns < S
    rows = bank_rows(index, start + chunk_columns, inside, GATHERED)
    valid = inside[:, None] & (at < E)[None, :]
    w = tl.load(centers + rows[:, None] * E + at[None, :], mask=valid, other=0.0).to(tl.float32)
    if not UNIT:
        w *= tl.rsqrt(tl.sum(w * w, axis=1) + NORM_EPSILON)[:, None]
    elements = operand + chunk_columns[:, None] * E + at[None, :]
    tl.store(elements, w.to(operand.dtype.element_ty), mask=(at < E)[None, :])


@triton.jit(do_not_specialize=["G", "S", "start", "tiles"])
def statistics_kernel(
    left,
    operand,
    label_columns,
    of_negatives,
    log_weights,
    maxima,
    sums,
    scale,
    threshold,
    G,
    S,
    T,
    start,
    tiles,
    E: tl.constexpr,
    FUSED: tl.constexpr,
    LABELS: tl.constexpr,
    NEGATIVES: tl.constexpr,
    WEIGHTED: tl.constexpr,
    PRECISION: tl.constexpr,
    BG: tl.constexpr,
    BC: tl.constexpr,
    BK: tl.constexpr,
):
    """Adds a chunk to the maxima and sums: each of n programs computes BG rows with every n-th tile of centers.

    Args:
        left, operand: see tile_cosines.
        label_columns: (G, LABELS) int32, columns of the labels in the step, -1 for none.
        of_negatives: (2, G) float32, if NEGATIVES is CURRICULAR.
        log_weights: (S,) float32, if WEIGHTED.
        maxima, sums: (n, G) float32, read and written.
        scale: s.
        threshold: s times the threshold of the filter.
        T: a multiple of BC.
        start: column of the step where the chunk begins, a multiple of BC.
        tiles: T / BC.
    """
    split = tl.program_id(1)
    rows_of_batch = tl.program_id(0) * BG + tl.arange(0, BG)
    batch = tl.minimum(rows_of_batch, G - 1)
    maximum = tl.load(maxima + split * G + batch)
    total = tl.load(sums + split * G + batch)
    for tile in range(split, tiles, tl.num_programs(1)):
        chunk_columns = tile * BC + tl.arange(0, BC)
        cosines = tile_cosines(left, operand, batch, chunk_columns, T, E, FUSED, BG, BC, BK, PRECISION)
        columns = start + chunk_columns
        logits, _ = with_margin(
            cosines * scale,
            batch,
            columns,
            label_columns,
            of_negatives,
            log_weights,
            scale,
            threshold,
            G,
            S,
            LABELS,
            NEGATIVES,
            WEIGHTED,
        )
        # Rescales the running sum to the new maximum (online softmax).
        highest = tl.maximum(maximum, tl.max(logits, axis=1))
        total = total * tl.exp(maximum - highest) + tl.sum(tl.exp(logits - highest[:, None]), axis=1)
        maximum = highest
    tl.store(maxima + split * G + rows_of_batch, maximum, mask=rows_of_batch < G)
    tl.store(sums + split * G + rows_of_batch, total, mask=rows_of_batch < G)
