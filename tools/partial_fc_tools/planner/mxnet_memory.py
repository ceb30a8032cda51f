"""The memory of a rank of the MXNet trainer by part.

Arrays that a step holds at its peak, counted in the code that allocates them (layer/tiled_softmax.py and
memory_module.py of partial_fc_mxnet). benchmarks/planner_check.py measures them on a host; freed memory that glibc's
malloc keeps is not counted. On GPUs they have not been measured.

Shapes: B local batch, R ranks, G = B*R global batch, E embedding, L classes of a rank, S of them in a step, T classes
of a tile.
"""

from collections.abc import Iterator

from partial_fc.utils.text import plural

from .backbones import BACKBONES, IMAGE_NUMBERS
from .case import FLOAT, MIB, Case, Layer, Part, gradient_bytes, layer_part

# Assumptions. The first two add up to what the four published figures of Partial FC on 2080 Ti leave beside weights,
# activations and logits, about 1.6 GiB (tests/tools/planner/test_planner.py).
CUDA_CONTEXT = 512 * MIB  # with the kernels of MXNet, cuDNN and NCCL and the driver's own memory
CONVOLUTION_WORKSPACE = 1024 * MIB  # MXNet's limit for cuDNN, shared by all layers
# Horovod 0.28 allocates it at once; on a CPU only the pages in use become resident.
FUSION_BUFFER = 128 * MIB
# Measured after the first step: Python 3.11, the CPU wheel of MXNet, Horovod and MPI. CUDA's wheels take more.
PROCESS = 180 * MIB

# Arrays (G, E) and (B, E) at the peak, which is the end of the backward pass: gathered features, their unit rows, those
# times s, their gradient, the gradient of the step before, and a product that is subtracted from it; of the local batch
# the features, the features with labels, the rows with a target on this rank, and two arrays of the gradient.
_GATHERED_ARRAYS, _LOCAL_ARRAYS = 6, 5
# Of each row and tile two float32 maxima and sums, in a list and stacked; the same in float64, and two intermediate
# results.
_STATISTICS_BYTES = 2 * 2 * 4 + 4 * 8
# The output of an operator on a GPU until the next one has read it, and the one before, which is being freed.
_INTERMEDIATE_TILES = 2


def mxnet_parts(case: Case, layer: Layer) -> Iterator[Part]:
    """Yields all parts but the bank."""
    yield from _layer_parts(case, layer)
    yield from _backbone_parts(case, layer)
    yield from _process_parts(case, layer)


def _layer_parts(case: Case, layer: Layer) -> Iterator[Part]:
    center_rows = case.embedding * layer.tile
    # With 1 / |center| of each column. Unless they are kept, two tiles exist while the next one is computed.
    if layer.keeps:
        yield layer_part("logits, kept for the backward pass", layer.computes, (layer.batch + 1) * layer.sampled)
    else:
        tiles = min(2, layer.tiles)
        yield layer_part(f"logits of {plural(tiles, 'tile')}", layer.computes, tiles * (layer.batch + 1) * layer.tile)
    # The CPU reads a bank in the memory of the host or in a file.
    near = layer.computes if layer.bank == layer.computes else "host"
    if layer.gathered or layer.elsewhere:
        kept = case.embedding * layer.sampled if layer.keeps else center_rows
        yield layer_part("sampled centers" if layer.gathered else "centers on the GPU", layer.computes, kept)
    yield layer_part("gradient of a tile's centers", layer.computes, center_rows)
    # A CPU reads the momentum of a bank in its own memory some rows at a time.
    if layer.gathered and (layer.computes == "device" or layer.elsewhere):
        yield layer_part("momentum of a tile's centers", near, center_rows)
    if layer.elsewhere:
        yield layer_part("a tile between host and GPU", near, center_rows * (1 + layer.gathered))
    if layer.computes == "device":
        yield layer_part("intermediate results of a tile", layer.computes, _INTERMEDIATE_TILES * center_rows)
    rows = _GATHERED_ARRAYS * layer.batch + _LOCAL_ARRAYS * case.batch
    yield layer_part("features and their gradients", layer.computes, case.embedding * rows)
    # int64; sampled indices are held a second time, tile by tile.
    index = 8 * layer.sampled * (1 + layer.gathered)
    yield Part("layer", "indices and statistics", "host", index + _STATISTICS_BYTES * layer.tiles * layer.batch)


def _backbone_parts(case: Case, layer: Layer) -> Iterator[Part]:
    if not case.network:
        return
    backbone = BACKBONES[case.network]
    half, full = backbone.parameters(case.embedding)
    running = backbone.statistics(case.embedding)
    size = 2 if case.fp16 else FLOAT
    images = FLOAT * case.batch * IMAGE_NUMBERS
    second_layout = backbone.prelu and layer.computes == "host"
    for name, place, nbytes in (
        ("parameters and statistics", layer.computes, size * half + FLOAT * (full + running)),
        ("gradients", layer.computes, size * half + FLOAT * full),
        ("momentum", layer.computes, FLOAT * (half + full)),
        ("float32 master weights", layer.computes, FLOAT * half * case.fp16),
        ("activations (estimate)", layer.computes, size * backbone.activations(case.batch)),
        ("maps in oneDNN's layout (estimate)", "host", FLOAT * case.batch * backbone.kept * second_layout),
        ("images of a batch", layer.computes, images),
        ("images of the next batch", "host", images),
        ("the Module's copy of the parameters", "host", size * half + FLOAT * (full + running)),
    ):
        yield Part("backbone", name, place, nbytes)


def _process_parts(case: Case, layer: Layer) -> Iterator[Part]:
    gradients = gradient_bytes(case)
    if case.ranks > 1 and case.network:
        fusion = FUSION_BUFFER if layer.computes == "device" else min(FUSION_BUFFER, gradients)
        yield Part("process", "Horovod's fusion buffer", layer.computes, fusion)
    if layer.computes == "device":
        yield Part("process", "CUDA context (assumed)", "device", CUDA_CONTEXT)
        if case.network:
            yield Part("process", "convolutions' workspace (assumed)", "device", CONVOLUTION_WORKSPACE)
    yield Part("process", "Python, MXNet, Horovod and MPI", "host", PROCESS)
