"""Functions that the kernels share: a tile of logits, as step.py defines them, in registers.

A tile may extend beyond the batch and the step. Addresses are clamped instead of masked, so that loads stay wide; the
callers exclude the elements outside from their sums.

Shapes: BG rows of the batch and BC centers of a tile, BK elements that a product sums at a time, S centers of the step,
LABELS labels of an item, E embedding.
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
def center_rows(index, columns, GATHERED: tl.constexpr):
    """Returns the bank's rows, int64, for columns of the step."""
    rows = columns.to(tl.int64)
    if GATHERED:
        rows = tl.load(index + columns)
    return rows


@triton.jit
def load_part(rows, at, E: tl.constexpr, WIDTH: tl.constexpr):
    """Loads the elements ``at`` (WIDTH,) of rows, given pointers (N, 1) to the rows: (N, WIDTH), 0 beyond E."""
    if E % WIDTH == 0:
        part = tl.load(rows + at[None, :])
    else:
        part = tl.load(rows + at[None, :], mask=(at < E)[None, :], other=0.0)
    return part


@triton.jit
def tile_cosines(
    features,
    centers,
    batch,
    rows,
    E: tl.constexpr,
    BG: tl.constexpr,
    BC: tl.constexpr,
    BK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Returns the products of features with unit centers (BG, BC), and the inverse norms of the centers (BC,)."""
    products = tl.zeros((BG, BC), tl.float32)
    squares = tl.zeros((BC,), tl.float32)
    for start in range(0, E, BK):
        at = start + tl.arange(0, BK)
        x = load_part(features + batch[:, None] * E, at, E, BK)
        w = load_part(centers + rows[:, None] * E, at, E, BK)
        squares += tl.sum(w * w, axis=1)
        products = tl.dot(x, tl.trans(w.to(x.dtype)), products, input_precision=PRECISION)
    inverse_norms = tl.rsqrt(squares + NORM_EPSILON)
    return products * inverse_norms[None, :], inverse_norms


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
    LABELS: tl.constexpr,
    NEGATIVES: tl.constexpr,
    WEIGHTED: tl.constexpr,
):
    """Returns the logits with margin and weights, LOWEST for labels of the row, and their slopes, both (BG, BC)."""
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
        logits += tl.load(log_weights + columns)[None, :]
    for number in tl.static_range(LABELS):
        are_labels = tl.load(label_columns + batch * LABELS + number)[:, None] == columns[None, :]
        logits = tl.where(are_labels, LOWEST, logits)
    return logits, slopes
