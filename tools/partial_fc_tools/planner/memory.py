"""The memory of a rank by part: the arrays that exist at the peak of a step, derived from the code that allocates them.

benchmarks/planner_check.py measures memory on a host; on GPUs it has not been measured. Freed memory that malloc or
CUDA's allocator retains is not counted.

Shapes: B local batch, G global batch, E embedding, S sampled classes per rank, T classes per tile.
"""

from collections.abc import Iterator
from typing import NamedTuple

from partial_fc.utils.text import plural

from .backbones import BackboneSizes
from .case import BACKBONE_STATES, FLOAT, MIB, Case, Layer

# Assumed: kernels of the framework, cuDNN and NCCL, and the driver's own memory. Together with the workspace, this
# explains the four published figures of Partial FC on 2080 Ti, which exceed weights, activations and logits by about
# 1.6 GiB.
CUDA_CONTEXT = 512 * MIB
CONVOLUTION_WORKSPACE = 1024 * MIB  # MXNet's limit for cuDNN, shared by all layers
FUSION_BUFFER = 128 * MIB  # Horovod 0.28 allocates it at once; on a CPU only the used pages become resident
# Measured after the first step with Python 3.11 and CPU wheels; CUDA wheels need more.
PROCESS = {"mxnet": ("Python, MXNet, Horovod and MPI", 180 * MIB), "torch": ("Python and PyTorch", 330 * MIB)}
PRODUCT_WORKSPACE = MIB // 2  # measured: MKL's reordered copies of a product's operands, in one thread
# Numbers of arrays (G, E) and (B, E) at the end of the layer's backward pass: features in several forms, and gradients.
FEATURE_ARRAYS = {"mxnet": (6, 5), "torch": (4, 4)}
STATISTICS_BYTES = 48  # per row and tile in MXNet: maxima and sums, twice in float32 and once in float64


GROUPS = ("layer", "backbone", "process")
# Beginnings of the names of parts that each head keeps between steps; it frees or reuses the others in each step.
KEPT = ("class centers", "states of their optimizer", "unit rows of the centers", "sampled centers and states")


class Part(NamedTuple):
    """A part of the memory of a rank."""

    group: str  # layer, backbone or process
    name: str
    place: str  # device, host or file
    nbytes: int


def memory_parts(case: Case, layer: Layer, backbone: BackboneSizes | None) -> list[Part]:
    """Returns all parts that are not empty."""
    groups = {
        "layer": _layer(case, layer),
        "backbone": _backbone(case, layer, backbone) if backbone else (),
        "process": _process(case, layer, backbone),
    }
    return [Part(group, *part) for group, parts in groups.items() for part in parts if part[-1]]


def with_head(parts: list[Part], of_head: list[Part], name: str) -> list[Part]:
    """Adds the parts of a further head, which is trained after the others in a step.

    What it keeps is added; of what a step frees, only the largest counts.
    """
    total = {(part.group, part.name, part.place): part for part in parts}
    for part in of_head:
        is_kept = part.name.startswith(KEPT) or part.name.endswith("of the next batch")
        part = part._replace(name=f"{part.name}, head {name}") if is_kept else part
        key = (part.group, part.name, part.place)
        total[key] = max(total.get(key, part), part, key=lambda each: each.nbytes)
    return sorted(total.values(), key=lambda part: GROUPS.index(part.group))


def _layer(case: Case, layer: Layer) -> Iterator[tuple[str, str, int]]:
    is_torch, computes, on_gpu = case.trainer == "torch", layer.computes, layer.computes == "device"
    row = FLOAT * layer.center_width  # bytes of the centers of a class in a step
    yield "class centers", layer.bank, layer.center_bytes * layer.classes
    yield "states of their optimizer", layer.bank, layer.state_bytes * layer.classes
    if case.unit_copy == "always" and on_gpu and not layer.elsewhere and not layer.narrow:
        yield "unit rows of the centers in 16 bits", "device", 2 * layer.center_width * layer.classes
    if layer.keeps:
        columns, name = layer.sampled, "logits, kept for the backward pass"
    else:
        tiles = 1 if is_torch else min(2, layer.tiles)  # MXNet holds a tile while it computes the next one
        columns, name = tiles * layer.tile, f"logits of {plural(tiles, 'tile')}"
    yield name, computes, FLOAT * (layer.batch + case.sub_centers) * columns  # more rows for 1 / |center|
    if case.sub_centers > 1:
        cosines = FLOAT * layer.batch * case.sub_centers * layer.tile
        yield "cosines of a tile's sub-centers, and the nearest ones", computes, cosines + layer.batch * columns
    yield "slopes of the logits", computes, FLOAT * layer.batch * columns * layer.sloped
    copied = row * (layer.sampled if layer.keeps and not layer.narrow else layer.tile)
    staged = (layer.center_bytes + layer.state_bytes) * layer.sampled
    if layer.elsewhere and is_torch:
        yield "sampled centers and states, of this step and the next", "device", 2 * staged
        # "At least": PyTorch rounds pinned memory up to powers of two.
        yield "sampled centers and states in pinned memory (at least)", "host", staged
    elif layer.elsewhere:
        yield "sampled centers" if layer.gathered else "centers on the GPU", "device", copied
        yield "a tile between host and GPU", "host", row * layer.tile * (1 + layer.gathered)
    elif layer.gathered and not layer.narrow:
        yield "sampled centers", computes, copied
    yield "float32 copies of the centers", computes, copied * layer.narrow
    yield "gradient of a tile's centers", computes, row * layer.tile
    yield "gradient of the sampled centers", computes, row * layer.sampled * (case.gradient_acc > 1)
    # A CPU updates a few rows at a time, a GPU a tile.
    if on_gpu and is_torch:
        is_copied = layer.narrow or layer.gathered and not layer.elsewhere
        states = FLOAT * layer.state_width * layer.tile * is_copied
        rounded = 2 * row * layer.tile * layer.narrow  # random bits and the sum of them and the centers
        yield "states, intermediate results of a tile", computes, max(row * layer.tile, states) + rounded
    elif on_gpu:
        yield "momentum of a tile's centers", "host" if layer.elsewhere else computes, row * layer.tile * layer.gathered
        # Two outputs of operators: the current one, and the previous one, which is being freed.
        yield "intermediate results of a tile", computes, 2 * row * layer.tile
    elif is_torch:
        yield "workspace of the products", "host", PRODUCT_WORKSPACE
    of_all, of_rank = FEATURE_ARRAYS[case.trainer]
    yield (
        "features and their gradients",
        computes,
        FLOAT * case.embedding * (of_all * layer.batch + of_rank * case.batch),
    )
    if is_torch:  # int64, for all tiles and for the current one
        rows = case.sub_centers * layer.sampled
        yield "indices", "host", 2 * 8 * rows * (layer.gathered or layer.narrow)
        yield "indices on the GPU", "device", 8 * rows * on_gpu
    else:
        indices = 8 * layer.sampled * (1 + layer.gathered)
        yield "indices and statistics", "host", indices + STATISTICS_BYTES * layer.tiles * layer.batch


def _backbone(case: Case, layer: Layer, backbone: BackboneSizes) -> Iterator[tuple[str, str, int]]:
    place, on_gpu, items = layer.computes, layer.computes == "device", case.batch * backbone.item_bytes
    gradients = FLOAT * backbone.parameters - 2 * backbone.half_parameters
    weights, states = gradients + FLOAT * backbone.statistics, BACKBONE_STATES[case.backbone_optimizer]
    yield "parameters and statistics", place, weights
    yield "gradients", place, gradients
    yield "momentum" if states == 1 else "moments of AdamW", place, FLOAT * states * backbone.parameters
    yield "average of the weights", place, weights * case.ema
    yield "float32 master weights", place, FLOAT * backbone.half_parameters
    yield "float16 copies of the weights", place, backbone.copied_bytes
    yield "activations", place, case.batch * backbone.saved_bytes
    relaid = 0 if on_gpu else FLOAT * case.batch * backbone.relaid_activations
    yield "activations in oneDNN's layout (estimate)", "host", relaid
    # Allocated while most activations still exist: the gradient of the largest weight, usually the head's, before it is
    # copied to its bucket, or the gradient of the largest activation.
    first = max(backbone.largest_parameter, backbone.largest * case.batch)
    yield "first gradients of the backward pass (estimate)", place, FLOAT * first
    # Micro-batches are copied to a GPU one at a time.
    yield f"{case.items} of a batch", place, items * (1 if on_gpu else case.gradient_acc)
    yield f"{case.items} of the next batch", "host", case.gradient_acc * items
    if case.trainer == "mxnet":
        yield "the Module's copy of the parameters", "host", weights


def _process(case: Case, layer: Layer, backbone: BackboneSizes | None) -> Iterator[tuple[str, str, int]]:
    on_gpu = layer.computes == "device"
    if case.trainer == "mxnet" and backbone:
        gradients = FLOAT * backbone.parameters - 2 * backbone.half_parameters
        fusion = FUSION_BUFFER if on_gpu else min(FUSION_BUFFER, gradients)
        yield "Horovod's fusion buffer", layer.computes, fusion * (case.ranks > 1)
        yield "convolutions' workspace (assumed)", "device", CONVOLUTION_WORKSPACE * on_gpu
    yield "CUDA context (assumed)", "device", CUDA_CONTEXT * on_gpu
    name, nbytes = PROCESS[case.trainer]
    yield name, "host", nbytes
