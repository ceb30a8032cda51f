"""Functions that the kernels share: a tile of logits, as step.py defines them, in registers.

A tile may extend beyond the batch and the step. Addresses are clamped instead of masked, so that loads stay wide; the
callers exclude the elements outside from their sums.

Shapes: G global batch, S centers of the step, T of the chunk, BG rows of the batch and BC centers of a tile, BK
elements that a product sums at a time, LABELS labels of an item, E embedding.
"""

import triton
import triton.language as tl

LOWEST = tl.constexpr(-3.4028234663852886e38)  # lowest float32: a logit that is excluded from the sum
NORM_EPSILON = tl.constexpr(1e-10)  # as in rows.py

# A margin's change of the negatives: none, the filter of CombinedMarginLoss, the weights of CurricularFace.
PLAIN = tl.constexpr(0)
FILTER = tl.constexpr(1)
CURRICULAR = tl.constexpr(2)


@triton.jit
def bank_rows(index, columns, inside, GATHERED: tl.constexpr):
    """Returns the bank's rows, int64, for columns of the step; 0 for those outside."""
    rows = columns.to(tl.int64)
    if GATHERED:
        rows = tl.load(index + columns, mask=inside, other=0)
    return rows


@triton.jit
def tile_cosines(
    left,
    operand,
    batch,
    chunk_columns,
    T,
    E: tl.constexpr,
    FUSED: tl.constexpr,
    BG: tl.constexpr,
    BC: tl.constexpr,
    BK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Returns the cosines of a tile (BG, BC).

    Args:
        left: (G, T) float32, the cosines of the chunk; if FUSED, (G, E), the unit rows of the features.
        operand: (T, E), the unit rows of the chunk's centers, in the type of ``left``, if FUSED.
    """
    if FUSED:
        cosines = tl.zeros((BG, BC), tl.float32)
        for start in range(0, E, BK):
            at = start + tl.arange(0, BK)
            features, centers = (
                left + batch[:, None] * E + at[None, :],
                operand + chunk_columns[None, :] * E + at[:, None],
            )
            if E % BK == 0:
                x, w = tl.load(features), tl.load(centers)
            else:
                x = tl.load(features, mask=(at < E)[None, :], other=0.0)
                w = tl.load(centers, mask=(at < E)[:, None], other=0.0)
            cosines = tl.dot(x, w, cosines, input_precision=PRECISION)
    else:
        cosines = tl.load(left + batch[:, None].to(tl.int64) * T + chunk_columns[None, :])
    return cosines


@triton.jit
def with_margin(
    logits,
    batch,
    columns,
    label_columns,
    of_negatives,
    log_weights,
    scale,
    threshold,
    G,
    S,
    LABELS: tl.constexpr,
    NEGATIVES: tl.constexpr,
    WEIGHTED: tl.constexpr,
):
    """Returns the logits with margin and weights, and their slopes, both (BG, BC).

    Logits are LOWEST for labels of the row, and beyond the step.
    """
    slopes = tl.full(logits.shape, 1.0, tl.float32)
    if NEGATIVES == FILTER:
        logits = tl.where(logits > threshold, LOWEST, logits)
    if NEGATIVES == CURRICULAR:
        cosines = logits / scale
        t = tl.load(of_negatives + G + batch)[:, None]
        hard = cosines > tl.load(of_negatives + batch)[:, None]
        logits = tl.where(hard, logits * (t + cosines), logits)
        slopes = tl.where(hard, t + 2 * cosines, 1.0)
    if WEIGHTED:
        logits += tl.load(log_weights + tl.minimum(columns, S - 1))[None, :]
    logits = tl.where((columns < S)[None, :], logits, LOWEST)
    for number in tl.static_range(LABELS):
        are_labels = tl.load(label_columns + batch * LABELS + number)[:, None] == columns[None, :]
        logits = tl.where(are_labels, LOWEST, logits)
    return logits, slopes
