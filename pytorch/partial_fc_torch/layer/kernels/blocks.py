"""Block sizes of the kernels.

With these sizes, no kernel spills registers in loops, and each fits into the shared memory of its GPU, as compiling
them in tests/torch/test_kernel_compilation.py shows. Their speed has not been measured.
"""

from dataclasses import dataclass, field, replace
from typing import Any

CHUNK_BYTES = 256 << 20  # upper limit of a chunk's gradients; about the size of a tile in partial_fc/layer/tiling.py


@dataclass(frozen=True)
class Blocks:
    """Block sizes, each a power of 2."""

    batch: int = 128  # rows of the batch
    classes: int = 128  # centers in a tile of logits
    centers: int = 64  # centers per program of the update; at most ``classes``
    embedding: int = 128  # elements of a row in a tile of a gradient
    inner: int = 32  # elements that a product sums at a time; at most the smallest of the above
    update: int = 32  # elements of a row that an update processes at a time
    processors: int = 1  # number of multiprocessors
    options: dict[str, Any] = field(default_factory=lambda: {"num_warps": 8, "num_stages": 3})  # compiler options

    def chunk(self, batch: int, embedding_size: int, tile_classes: int) -> int:
        """Returns T, the centers of a chunk: two programs per multiprocessor, unless ``tile_classes`` is set."""
        most = CHUNK_BYTES // (4 * (batch + embedding_size))
        size = tile_classes or min(self.centers * 2 * self.processors, most)
        return -(-max(size, 1) // self.classes) * self.classes


# For tests with Triton's interpreter on a CPU.
SMALLEST = Blocks(batch=4, classes=8, centers=4, embedding=4, inner=4, update=2, processors=5, options={})


def blocks_for(capability: tuple[int, int], processors: int, half: bool, slopes: bool) -> Blocks:
    """Returns the block sizes for a GPU.

    Args:
        capability: compute capability, at least (8, 0).
        processors: number of multiprocessors.
        half: whether the operands are in half precision.
        slopes: whether the negatives have slopes, which take registers in addition to the logits.
    """
    blocks = Blocks(inner=64 if half else 32, processors=processors)
    # Tiles of 128 x 128 logits spill on 10.x, which reads accumulators from tensor memory, and in half precision on
    # graphics cards.
    spills = capability[0] == 10 or half and capability not in ((8, 0), (9, 0))
    return replace(blocks, classes=64) if slopes or spills else blocks
