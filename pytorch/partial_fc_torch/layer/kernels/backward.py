"""The backward pass of a chunk of centers: gradients by its logits, and from them the gradient by the features.

The gradients by the logits exist only for one chunk of some thousand centers at a time. The gradients by the features
and by the centers both need them, summed over different axes. Recomputing them would cost another product; storing them
costs 4 G bytes per center, which stay in the L2 cache of large GPUs.

Shapes: G global batch, H = G rounded up to whole tiles, S centers of the step, T centers of the chunk, BG rows of the
batch and BC centers of a tile, E embedding.
"""

import triton
import triton.language as tl

from .logits import center_rows, load_part, tile_cosines, with_margin


@triton.jit(do_not_specialize=["G", "S"])
def logit_gradients_kernel(
    features,
    centers,
    index,
    label_columns,
    of_negatives,
    log_weights,
    row_term,
    d_logits,
    operand_scale,
    scale,
    threshold,
    G,
    S,
    T,
    start,
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
    """Recomputes a tile's logits l, and writes exp(l - u) times slope / norm of the center; 0 for labels of the row.

    Args:
        row_term: (G,) float32, u of LogSumExp.row_term.
        d_logits: (H, T) output in the type of ``features``; 0 beyond the batch and the step.
        start: column of the step where the chunk begins; like T, a multiple of BC.
        Others: see statistics_kernel.
    """
    rows_of_batch = tl.program_id(0) * BG + tl.arange(0, BG)
    batch = tl.minimum(rows_of_batch, G - 1)
    chunk_columns = tl.program_id(1) * BC + tl.arange(0, BC)
    columns = tl.minimum(start + chunk_columns, S - 1)
    rows = center_rows(index, columns, GATHERED)
    cosines, inverse = tile_cosines(features, centers, batch, rows, E, BG, BC, BK, PRECISION)
    logits, slopes = with_margin(
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
    gradients = tl.exp(logits - tl.load(row_term + batch)[:, None]) * slopes * inverse[None, :]
    counted = (rows_of_batch < G)[:, None] & (start + chunk_columns < S)[None, :]
    gradients = tl.where(counted, gradients, 0.0)
    pointers = d_logits + rows_of_batch[:, None].to(tl.int64) * T + chunk_columns[None, :]
    tl.store(pointers, gradients.to(d_logits.dtype.element_ty))


@triton.jit(do_not_specialize=["G", "S", "tiles"])
def feature_gradient_kernel(
    d_logits,
    centers,
    index,
    parts,
    G,
    S,
    T,
    start,
    tiles,
    E: tl.constexpr,
    GATHERED: tl.constexpr,
    PRECISION: tl.constexpr,
    BG: tl.constexpr,
    BE: tl.constexpr,
    BK: tl.constexpr,
):
    """Adds the product of d_logits and the centers of a chunk to the gradient by the unit rows of the features.

    Each of n programs sums over some of the centers into a separate part, so that the order of additions is fixed.

    Args:
        d_logits, start: see logit_gradients_kernel.
        parts: (n, G, E) float32, whose sum is the gradient; read and written.
        tiles: number of tiles of BK centers in the chunk.
        Others: see statistics_kernel.
    """
    split, tile = tl.program_id(1), tl.program_id(0)
    batch = (tile // tl.cdiv(E, BE)) * BG + tl.arange(0, BG)
    at = (tile % tl.cdiv(E, BE)) * BE + tl.arange(0, BE)
    gradient = tl.zeros((BG, BE), tl.float32)
    each = tl.cdiv(tiles, tl.num_programs(1))
    for number in range(split * each, tl.minimum(split * each + each, tiles)):
        chunk_columns = number * BK + tl.arange(0, BK)
        rows = center_rows(index, tl.minimum(start + chunk_columns, S - 1), GATHERED)
        d = tl.load(d_logits + batch[:, None].to(tl.int64) * T + chunk_columns[None, :])
        w = load_part(centers + rows[:, None] * E, at, E, BE)
        gradient = tl.dot(d, w.to(d.dtype), gradient, input_precision=PRECISION)
    pointers = parts + (split * G + batch[:, None]) * E + at[None, :]
    inside = (batch < G)[:, None] & (at < E)[None, :]
    tl.store(pointers, tl.load(pointers, mask=inside, other=0.0) + gradient, mask=inside)
