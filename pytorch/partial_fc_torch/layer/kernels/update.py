"""The gradient by the centers of a chunk, and their update in place.

Shapes: G global batch, H rows of it with those that fill the last tile, S centers of the step, T of the chunk, N of the
bank, BC centers of a program, BE numbers of a row of a product, BU of an update, E embedding.
"""

import triton
import triton.language as tl

from .logits import center_rows, load_part

# What happens to the gradient: it is left for the caller, or goes into an update, see layer/optimizers.
NONE = tl.constexpr(0)
SGD = tl.constexpr(1)
ADAMW = tl.constexpr(2)
ADAGRAD = tl.constexpr(3)


@triton.jit
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
    d_targets,
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
    OPTIMIZER: tl.constexpr,
    PRECISION: tl.constexpr,
    BC: tl.constexpr,
    BE: tl.constexpr,
    BK: tl.constexpr,
    BU: tl.constexpr,
):
    """A program computes the gradient by BC centers, BE numbers at a time, and updates them.

    The gradient without its component along the center needs whole rows, which registers do not hold: a first pass
    over the rows writes it to ``raw``, from where the second reads it. No other program reads or writes these rows.

    Args:
        d_logits: (H, T), see logit_gradients_kernel.
        operand: (E, H) features as operand of the products; tensor cores take TF32 with neighbors along the sum.
        rows_of_features: (G, E) float32, of which ``operand`` has the rounded numbers.
        centers: (N, E) float32, index: (S,) int64; inverse_norms: (S,) float32, of the centers.
        order: (G,) int32, the rows of the batch sorted by the column of their target; sorted_columns: (G,) int32.
        borders: (ceil(S / BC) + 1,) int32, where the targets of each BC columns begin in ``order``.
        d_targets: (G,) float32, gradient by s times the cosines of the targets.
        raw: (T, E) float32, is written; if OPTIMIZER is NONE, it is what TileGradient has.
        first, second: (N, E), updates: (N,) float32, the states; those of the optimizer are updated.
        mean: 1 / G. decay: weight decay. rate1, rate2: momentum and SGDParams.gain, or both 1 - beta of AdamW.
        step_size: what the momentum of SGD enters the centers with; of the others the learning rate.
    """
    of_chunk = tl.program_id(0) * BC + tl.arange(0, BC)
    inside = start + of_chunk < S
    columns = tl.minimum(start + of_chunk, S - 1)
    rows = center_rows(index, columns, GATHERED)
    inverse = tl.load(inverse_norms + columns)
    first_target = tl.load(borders + start // BC + tl.program_id(0))
    after_targets = tl.load(borders + start // BC + tl.program_id(0) + 1)
    own = raw + of_chunk[:, None].to(tl.int64) * E
    row = centers + rows[:, None] * E
    for begin in range(0, E, BE):
        at = begin + tl.arange(0, BE)
        gradient = tl.zeros((BC, BE), tl.float32)
        for low in range(0, H, BK):
            batch = low + tl.arange(0, BK)
            d = tl.load(d_logits + batch[:, None].to(tl.int64) * T + of_chunk[None, :])
            places = operand + batch[:, None] + at[None, :] * H
            if E % BE == 0:
                x = tl.load(places)
            else:
                x = tl.load(places, mask=(at < E)[None, :], other=0.0)
            gradient = tl.dot(tl.trans(d), x, gradient, input_precision=PRECISION)
        for number in range(first_target, after_targets):
            number_of_row = tl.load(order + number)
            x = tl.load(rows_of_features + number_of_row * E + at, mask=at < E, other=0.0)
            factor = tl.where(columns == tl.load(sorted_columns + number), inverse, 0.0)
            gradient += (factor * tl.load(d_targets + number_of_row))[:, None] * x[None, :]
        tl.store(own + at[None, :], gradient * operand_scale, mask=(at < E)[None, :])
    if OPTIMIZER != NONE:
        tl.debug_barrier()  # other threads of the program read what was written to raw
        along = tl.zeros((BC,), tl.float32)
        for begin in range(0, E, BU):
            at = begin + tl.arange(0, BU)
            along += tl.sum(load_part(own, at, E, BU) * load_part(row, at, E, BU), axis=1)
        along = along * inverse * inverse
        factor, denominator = inverse, inverse  # of the optimizers below
        if OPTIMIZER == ADAGRAD:
            squares = tl.zeros((BC,), tl.float32)
            for begin in range(0, E, BU):
                at = begin + tl.arange(0, BU)
                w = load_part(row, at, E, BU)
                g = (load_part(own, at, E, BU) - w * along[:, None]) * mean + decay * w
                squares += tl.sum(g * g, axis=1)
            total = tl.load(updates + rows) + squares / E
            denominator = tl.sqrt(total) + eps
            tl.debug_barrier()  # rows beyond the step have the addresses of the last one
            tl.store(updates + rows, total, mask=inside)
        if OPTIMIZER == ADAMW:
            count = tl.load(updates + rows) + 1
            # In float64, as in layer/optimizers/adamw.py.
            correction1 = 1 - tl.exp(count.to(tl.float64) * log_beta1)
            correction2 = 1 - tl.exp(count.to(tl.float64) * log_beta2)
            factor = (correction1 / tl.sqrt(correction2)).to(tl.float32)
            denominator = (correction1 * eps).to(tl.float32)
            tl.debug_barrier()
            tl.store(updates + rows, count, mask=inside)
        for begin in range(0, E, BU):
            at = begin + tl.arange(0, BU)
            places = rows[:, None] * E + at[None, :]
            known = inside[:, None] & (at < E)[None, :]
            w = tl.load(centers + places, mask=known, other=0.0)
            g = (load_part(own, at, E, BU) - w * along[:, None]) * mean
            if OPTIMIZER == SGD:
                m = tl.load(first + places, mask=known, other=0.0)
                m = rate1 * m + rate2 * (g + decay * w)
                tl.store(first + places, m, mask=known)
                w += step_size * m
            if OPTIMIZER == ADAMW:
                m = tl.load(first + places, mask=known, other=0.0)
                v = tl.load(second + places, mask=known, other=0.0)
                m += (g - m) * rate1
                v += (g * g - v) * rate2
                tl.store(first + places, m, mask=known)
                tl.store(second + places, v, mask=known)
                w = w * (1 - step_size * decay) - step_size * m / (tl.sqrt(v) * factor[:, None] + denominator[:, None])
            if OPTIMIZER == ADAGRAD:
                w -= step_size * (g + decay * w) / denominator[:, None]
            tl.store(centers + places, w, mask=known)
