"""The memory of a rank of the PyTorch trainer by part.

Arrays that a step holds at its peak, which is the backward pass of the layer, or the first steps of the backbone's:
counted in the code that allocates them (partial_fc_torch). benchmarks/planner_check.py measures them on a host. On GPUs
they have not been measured; what CUDA's allocator keeps of freed memory is not counted.

Shapes: B local batch, G global batch, E embedding, S sampled classes of a rank, T classes of a tile.
"""

from collections.abc import Iterator

from .case import BACKBONE_STATES, FLOAT, MIB, Case, Layer, Part, backbone_sizes, item_name, layer_part

CUDA_CONTEXT = 512 * MIB  # assumed: kernels of PyTorch, cuDNN and NCCL, and the driver's own memory
# Measured after the first step: Python 3.11 and the CPU build of PyTorch 2.13. CUDA's builds take more.
PROCESS = 330 * MIB
# Measured: what MKL keeps of a product's operands in its own order, in one thread.
PRODUCT_WORKSPACE = MIB // 2

# Arrays (G, E) and (B, E) at the peak: gathered features, their unit rows, those times s, and their gradient; of the
# local batch the features, the features with labels, and the gradient.
_GATHERED_ARRAYS, _LOCAL_ARRAYS = 4, 4


def torch_parts(case: Case, layer: Layer) -> Iterator[Part]:
    """Yields all parts but the bank."""
    yield from _layer_parts(case, layer)
    yield from _backbone_parts(case, layer)
    if layer.computes == "device":
        yield Part("process", "CUDA context (assumed)", "device", CUDA_CONTEXT)
    yield Part("process", "Python and PyTorch", "host", PROCESS)


def _layer_parts(case: Case, layer: Layer) -> Iterator[Part]:
    center_rows = case.embedding * layer.tile
    columns = layer.sampled if layer.keeps else layer.tile
    logits = "logits, kept for the backward pass" if layer.keeps else "logits of a tile"
    yield layer_part(logits, layer.computes, (layer.batch + 1) * columns)  # with 1 / |center| of each column
    if layer.sloped:
        yield layer_part("slopes of the logits", layer.computes, layer.batch * columns)
    staged = (case.embedding + sum(layer.states)) * layer.sampled
    if layer.elsewhere:
        yield layer_part("sampled centers and states, of this step and the next", "device", 2 * staged)
        # PyTorch rounds pinned memory up to powers of two.
        yield layer_part("the same on their way, in pinned memory (at least)", "host", staged)
    elif layer.gathered:
        yield layer_part("sampled centers", layer.computes, case.embedding * columns)
    yield layer_part("gradient of a tile's centers", layer.computes, center_rows)
    if case.gradient_acc > 1:
        yield layer_part("gradient of the sampled centers", layer.computes, case.embedding * layer.sampled)
    if layer.computes == "device":  # a CPU updates some rows at a time
        # One after the other; the states are copied if they are sampled rows of the bank.
        copied = sum(layer.states) * layer.tile if layer.gathered and not layer.elsewhere else 0
        yield layer_part("states, intermediate results of a tile", layer.computes, max(center_rows, copied))
    else:
        yield Part("layer", "workspace of the products", "host", PRODUCT_WORKSPACE)
    rows = _GATHERED_ARRAYS * layer.batch + _LOCAL_ARRAYS * case.batch
    yield layer_part("features and their gradients", layer.computes, case.embedding * rows)
    if layer.gathered:
        yield Part("layer", "indices", "host", 2 * 8 * layer.sampled)  # int64, whole and by tile
    if layer.computes == "device":
        yield Part("layer", "indices on the GPU", "device", 8 * layer.sampled)


def _backbone_parts(case: Case, layer: Layer) -> Iterator[Part]:
    if not case.network:
        return
    backbone = backbone_sizes(case)
    weights = FLOAT * (backbone.parameters + backbone.statistics)
    states = FLOAT * BACKBONE_STATES[case.backbone_optimizer] * backbone.parameters
    inputs, items = case.batch * backbone.input_bytes, item_name(case)
    if case.fp16:
        activations = 2 * backbone.half + FLOAT * backbone.full
    else:
        activations = FLOAT * backbone.all_full
    # While most activations are still there: the gradient of the largest weight, usually the head's, before it is
    # copied to its bucket, or that of the largest map.
    first = FLOAT * max(backbone.largest_parameter, backbone.largest * case.batch)
    for name, place, nbytes in (
        ("parameters and statistics", layer.computes, weights),
        ("gradients, in buckets", layer.computes, FLOAT * backbone.parameters),
        ("momentum" if case.backbone_optimizer == "sgd" else "moments of AdamW", layer.computes, states),
        ("moving average of the weights", layer.computes, weights * case.ema),
        ("float16 copies of the weights", layer.computes, 2 * backbone.copied * case.fp16),
        ("activations", layer.computes, case.batch * activations),
        ("first gradients of the backward pass (estimate)", layer.computes, first),
        # Micro-batches go to a GPU one by one.
        (f"{items} of a batch", layer.computes, inputs * (case.gradient_acc if layer.computes == "host" else 1)),
        (f"{items} of the next batch", "host", case.gradient_acc * inputs),
    ):
        yield Part("backbone", name, place, nbytes)
