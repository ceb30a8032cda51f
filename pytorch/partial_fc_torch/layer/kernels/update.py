"""The update of a chunk's centers: labels, the component along a center, states and rows, in one pass.

Shapes: G global batch, S centers of the step, T centers of the chunk, N centers of the bank, BR centers of a program, E
embedding.
"""

import triton
import triton.language as tl

from .logits import NORM_EPSILON, bank_rows

# What uses the gradient: the caller (NONE), or the kernel's update, see layer/optimizers.
NONE = tl.constexpr(0)
SGD = tl.constexpr(1)
ADAMW = tl.constexpr(2)
ADAGRAD = tl.constexpr(3)


@triton.jit(do_not_specialize=["S", "start"])
def update_kernel(
    raw,
    rows_of_features,
    centers,
    index,
    order,
    sorted_columns,
    borders,
    d_labels,
    gain,
    first,
    second,
    updates,
    units,
    mean,
    step_size,
    decay,
    rate1,
    rate2,
    log_beta1,
    log_beta2,
    eps,
    S,
    start,
    E: tl.constexpr,
    GATHERED: tl.constexpr,
    LABELS: tl.constexpr,
    OPTIMIZER: tl.constexpr,
    COPIED: tl.constexpr,
    BR: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Each program updates BR centers, whose whole rows are in its registers.

    Args:
        raw: (T, E) float32, sum over the negatives of their gradients by the logits times the unit rows of features. If
            OPTIMIZER is NONE, it is replaced by TileGradient.raw.
        rows_of_features: (G, E) float32, these unit rows.
        centers: (N, E) float32, the bank.
        index: (S,) int64, the rows of the step, if GATHERED.
        order: (G * LABELS,) int32, the labels of the batch, row by row, sorted by column.
        sorted_columns: (G * LABELS,) int32, these columns.
        borders: (ceil(S / BR) + 1,) int32, the position in ``order`` where the labels of each BR columns begin.
        d_labels: (G, LABELS) float32, gradients by the labels' cosines, in the unit of ``raw``.
        gain: scalar, s divided by the factor of ``raw``.
        first, second: (N, E) float32, states of the optimizer, which are updated.
        updates: (N,) float32, a state of AdamW or Adagrad.
        units: (N, E), the unit rows of the bank in the type of the products, which are updated if COPIED.
        mean: 1 / G.
        decay: weight decay.
        rate1, rate2: momentum and SGDParams.gain of SGD, or 1 - beta1 and 1 - beta2 of AdamW.
        step_size: factor of SGD's momentum in the update of the centers; learning rate of the other optimizers.
        start: column of the step where the chunk begins, a multiple of BR.
        WIDTH: power of 2, at least E.
    """
    chunk_columns, at = tl.program_id(0) * BR + tl.arange(0, BR), tl.arange(0, WIDTH)
    columns = start + chunk_columns
    inside = columns < S
    rows = bank_rows(index, columns, inside, GATHERED)
    valid = inside[:, None] & (at < E)[None, :]
    raw_elements = raw + chunk_columns[:, None].to(tl.int64) * E + at[None, :]
    g = tl.load(raw_elements, mask=valid, other=0.0)
    first_label = tl.load(borders + start // BR + tl.program_id(0))
    after_labels = tl.load(borders + start // BR + tl.program_id(0) + 1)
    for number in range(first_label, after_labels):
        label = tl.load(order + number)
        x = tl.load(rows_of_features + label // LABELS * E + at, mask=at < E, other=0.0)
        factor = tl.where(columns == tl.load(sorted_columns + number), tl.load(d_labels + label), 0.0)
        g += factor[:, None] * x[None, :]
    elements = rows[:, None] * E + at[None, :]
    w = tl.load(centers + elements, mask=valid, other=0.0).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(w * w, axis=1) + NORM_EPSILON)
    g *= tl.load(gain) * inverse[:, None]
    if OPTIMIZER == NONE:
        tl.store(raw_elements, g, mask=valid)
    else:
        along = tl.sum(g * w, axis=1) * inverse * inverse
        g = (g - w * along[:, None]) * mean
        if OPTIMIZER == SGD:
            m = tl.load(first + elements, mask=valid, other=0.0)
            m = rate1 * m + rate2 * (g + decay * w)
            tl.store(first + elements, m, mask=valid)
            w += step_size * m
        if OPTIMIZER == ADAMW:
            count = tl.load(updates + rows, mask=inside, other=0.0) + 1
            # In float64 for the reason given in layer/optimizers/adamw.py.
            correction1 = 1 - tl.exp(count.to(tl.float64) * log_beta1)
            correction2 = 1 - tl.exp(count.to(tl.float64) * log_beta2)
            factor1 = (correction1 / tl.sqrt(correction2)).to(tl.float32)
            epsilon = (correction1 * eps).to(tl.float32)
            m = tl.load(first + elements, mask=valid, other=0.0)
            v = tl.load(second + elements, mask=valid, other=0.0)
            m += (g - m) * rate1
            v += (g * g - v) * rate2
            tl.store(updates + rows, count, mask=inside)
            tl.store(first + elements, m, mask=valid)
            tl.store(second + elements, v, mask=valid)
            w = w * (1 - step_size * decay) - step_size * m / (tl.sqrt(v) * factor1[:, None] + epsilon[:, None])
        if OPTIMIZER == ADAGRAD:
            g += decay * w
            total = tl.load(updates + rows, mask=inside, other=0.0) + tl.sum(g * g, axis=1) / E
            tl.store(updates + rows, total, mask=inside)
            w -= step_size * g / (tl.sqrt(total) + eps)[:, None]
        tl.store(centers + elements, w, mask=valid)
        if COPIED:
            unit = w * tl.rsqrt(tl.sum(w * w, axis=1) + NORM_EPSILON)[:, None]
            tl.store(units + elements, unit.to(units.dtype.element_ty), mask=valid)
