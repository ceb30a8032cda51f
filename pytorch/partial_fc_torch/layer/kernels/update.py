"""The gradient by the centers of a chunk, and their update in place.

Shapes: G global batch, H = G rounded up to whole tiles, S centers of the step, T centers of the chunk, N centers of the
bank, BC centers of a program, BE elements of a row in a product, BU elements of a row in an update, E embedding.
"""

import triton
import triton.language as tl

from .logits import center_rows, load_part

# What uses the gradient: the caller (NONE), or the kernel's update, see layer/optimizers.
NONE = tl.constexpr(0)
SGD = tl.constexpr(1)
ADAMW = tl.constexpr(2)
ADAGRAD = tl.constexpr(3)


@triton.jit(do_not_specialize=["S"])
def center_gradient_kernel(
    d_logits,
    operand,
    rows_of_features,
    centers,
    index,
    inverse_norms,
    order,
    sorted_columns,
    borders,
    d_labels,
    raw,
    first,
    second,
    updates,
    operand_scale,
    mean,
    step_size,
    decay,
    rate1,
    rate2,
    log_beta1,
    log_beta2,
    eps,
    H,
    S,
    T,
    start,
    E: tl.constexpr,
    GATHERED: tl.constexpr,
    LABELS: tl.constexpr,
    OPTIMIZER: tl.constexpr,
    PRECISION: tl.constexpr,
    BC: tl.constexpr,
    BE: tl.constexpr,
    BK: tl.constexpr,
    BU: tl.constexpr,
):
    """Each program computes the gradient by BC centers, BE elements at a time, and updates these centers.

    Removing the component along a center needs the whole row, which does not fit into registers. A first loop over the
    row therefore writes the gradient to ``raw``, and a second one reads it. No other program accesses these rows.

    Args:
        d_logits: (H, T), see logit_gradients_kernel.
        operand: (E, H), the features as operand of the products; tensor cores need the summed axis contiguous in TF32.
        rows_of_features: (G, E) float32, the features before they were rounded for ``operand``.
        centers: (N, E) float32.
        index: (S,) int64, the rows of the step, if GATHERED.
        inverse_norms: (S,) float32, of the centers.
        order: (G * LABELS,) int32, the labels of the batch, row by row, sorted by column.
        sorted_columns: (G * LABELS,) int32, these columns.
        borders: (ceil(S / BC) + 1,) int32, the position in ``order`` where the labels of each BC columns begin.
        d_labels: (G, LABELS) float32, gradient with respect to s times the cosines of the labels.
        raw: (T, E) float32 output; if OPTIMIZER is NONE, it is TileGradient.raw.
        first, second: (N, E) float32, states of the optimizer, which are updated.
        updates: (N,) float32, a state of AdamW or Adagrad.
        mean: 1 / G.
        decay: weight decay.
        rate1, rate2: momentum and SGDParams.gain of SGD, or 1 - beta1 and 1 - beta2 of AdamW.
        step_size: factor of SGD's momentum in the update of the centers; learning rate of the other optimizers.
    """
    chunk_columns = tl.program_id(0) * BC + tl.arange(0, BC)
    inside = start + chunk_columns < S
    columns = tl.minimum(start + chunk_columns, S - 1)
    rows = center_rows(index, columns, GATHERED)
    inverse = tl.load(inverse_norms + columns)
    first_label = tl.load(borders + start // BC + tl.program_id(0))
    after_labels = tl.load(borders + start // BC + tl.program_id(0) + 1)
    raw_row = raw + chunk_columns[:, None].to(tl.int64) * E
    row = centers + rows[:, None] * E
    for begin in range(0, E, BE):
        at = begin + tl.arange(0, BE)
        gradient = tl.zeros((BC, BE), tl.float32)
        for low in range(0, H, BK):
            batch = low + tl.arange(0, BK)
            d = tl.load(d_logits + batch[:, None].to(tl.int64) * T + chunk_columns[None, :])
            pointers = operand + batch[:, None] + at[None, :] * H
            if E % BE == 0:
                x = tl.load(pointers)
            else:
                x = tl.load(pointers, mask=(at < E)[None, :], other=0.0)
            gradient = tl.dot(tl.trans(d), x, gradient, input_precision=PRECISION)
        for number in range(first_label, after_labels):
            label = tl.load(order + number)
            x = tl.load(rows_of_features + label // LABELS * E + at, mask=at < E, other=0.0)
            factor = tl.where(columns == tl.load(sorted_columns + number), inverse, 0.0)
            gradient += (factor * tl.load(d_labels + label))[:, None] * x[None, :]
        tl.store(raw_row + at[None, :], gradient * operand_scale, mask=(at < E)[None, :])
    if OPTIMIZER != NONE:
        tl.debug_barrier()  # the threads of the program exchange elements of raw
        along = tl.zeros((BC,), tl.float32)
        for begin in range(0, E, BU):
            at = begin + tl.arange(0, BU)
            along += tl.sum(load_part(raw_row, at, E, BU) * load_part(row, at, E, BU), axis=1)
        along = along * inverse * inverse
        factor, denominator = inverse, inverse  # placeholders, which the optimizers below overwrite
        if OPTIMIZER == ADAGRAD:
            squares = tl.zeros((BC,), tl.float32)
            for begin in range(0, E, BU):
                at = begin + tl.arange(0, BU)
                w = load_part(row, at, E, BU)
                g = (load_part(raw_row, at, E, BU) - w * along[:, None]) * mean + decay * w
                squares += tl.sum(g * g, axis=1)
            total = tl.load(updates + rows) + squares / E
            denominator = tl.sqrt(total) + eps
            tl.debug_barrier()  # threads beyond the step read the last row's state, because addresses are clamped
            tl.store(updates + rows, total, mask=inside)
        if OPTIMIZER == ADAMW:
            count = tl.load(updates + rows) + 1
            # In float64 for the reason given in layer/optimizers/adamw.py.
            correction1 = 1 - tl.exp(count.to(tl.float64) * log_beta1)
            correction2 = 1 - tl.exp(count.to(tl.float64) * log_beta2)
            factor = (correction1 / tl.sqrt(correction2)).to(tl.float32)
            denominator = (correction1 * eps).to(tl.float32)
            tl.debug_barrier()
            tl.store(updates + rows, count, mask=inside)
        for begin in range(0, E, BU):
            at = begin + tl.arange(0, BU)
            offsets = rows[:, None] * E + at[None, :]
            valid = inside[:, None] & (at < E)[None, :]
            w = tl.load(centers + offsets, mask=valid, other=0.0)
            g = (load_part(raw_row, at, E, BU) - w * along[:, None]) * mean
            if OPTIMIZER == SGD:
                m = tl.load(first + offsets, mask=valid, other=0.0)
                m = rate1 * m + rate2 * (g + decay * w)
                tl.store(first + offsets, m, mask=valid)
                w += step_size * m
            if OPTIMIZER == ADAMW:
                m = tl.load(first + offsets, mask=valid, other=0.0)
                v = tl.load(second + offsets, mask=valid, other=0.0)
                m += (g - m) * rate1
                v += (g * g - v) * rate2
                tl.store(first + offsets, m, mask=valid)
                tl.store(second + offsets, v, mask=valid)
                w = w * (1 - step_size * decay) - step_size * m / (tl.sqrt(v) * factor[:, None] + denominator[:, None])
            if OPTIMIZER == ADAGRAD:
                w -= step_size * (g + decay * w) / denominator[:, None]
            tl.store(centers + offsets, w, mask=valid)
