"""The backward pass of a chunk of centers: gradients by its logits.

They exist only for one chunk of some thousand centers at a time, because the gradients by the features and by the
centers both need them, summed over different axes. Those sums are matrix products of PyTorch.

Shapes: G global batch, S centers of the step, T centers of the chunk, BG rows of the batch and BC centers of a tile, E
embedding.
"""

import triton
import triton.language as tl

from .logits import tile_cosines, with_margin


@triton.jit(do_not_specialize=["G", "S", "start"])
def logit_gradients_kernel(
    left,
    operand,
    label_columns,
    of_negatives,
    log_weights,
    row_term,
    d_logits,
    scale,
    threshold,
    G,
    S,
    T,
    start,
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
    """Computes a tile's logits l, and writes exp(l - u) times slope; 0 for labels of the row.

    Args:
        row_term: (G,) float32, u of LogSumExp.row_term, minus the logarithm of a factor of the results.
        d_logits: (G, T) output in the type of the operands; 0 beyond the step.
        Others: see statistics_kernel.
    """
    rows_of_batch = tl.program_id(0) * BG + tl.arange(0, BG)
    batch = tl.minimum(rows_of_batch, G - 1)
    chunk_columns = tl.program_id(1) * BC + tl.arange(0, BC)
    cosines = tile_cosines(left, operand, batch, chunk_columns, T, E, FUSED, BG, BC, BK, PRECISION)
    logits, slopes = with_margin(
        cosines * scale,
        batch,
        start + chunk_columns,
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
    gradients = tl.exp(logits - tl.load(row_term + batch)[:, None]) * slopes
    pointers = d_logits + rows_of_batch[:, None].to(tl.int64) * T + chunk_columns[None, :]
    tl.store(pointers, gradients.to(d_logits.dtype.element_ty), mask=(rows_of_batch < G)[:, None])
