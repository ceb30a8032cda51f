"""Block sizes of the kernels.

With these sizes, no kernel spills registers in loops, and each fits into the shared memory of its GPU, as compiling
them in tests/torch/test_kernel_compilation.py shows. Their speed has not been measured.
"""

from dataclasses import dataclass, field, replace
from typing import Any

PRODUCT_BLOCK = 128 * 128  # results that a multiprocessor computes at a time in a matrix product of PyTorch
CHUNK_BYTES = 256 << 20  # upper limit of a chunk's arrays; about the size of a tile in partial_fc/layer/tiling.py


@dataclass(frozen=True)
class Blocks:
    """Block sizes, each a power of 2, and properties of the GPU."""

    batch: int = 128  # rows of the batch in a tile of logits
    classes: int = 128  # centers in a tile of logits
    inner: int = 64  # elements that a fused product sums at a time
    numbers: int = 2048  # elements of whole rows that a program holds in registers, if a row is not longer
    processors: int = 1  # number of multiprocessors
    cache: int = 0  # bytes of the L2 cache
    options: dict[str, Any] = field(default_factory=lambda: {"num_warps": 8, "num_stages": 3})  # of fused products

    def rows(self, width: int) -> int:
        """Returns the number of rows of a program that holds whole rows of ``width`` elements."""
        return min(max(1, self.numbers // width), self.classes)

    def chunk(self, batch: int, embedding_size: int, tile_classes: int) -> int:
        """Returns T, the number of centers of a chunk, a multiple of ``classes``.

        Unless ``tile_classes`` is set, three quarters of the L2 cache hold the logits and the unit rows of a chunk,
        which its kernels pass to each other; but the gradient by its centers, the smallest product, has at least a
        block for each multiprocessor.
        """
        fitting = self.cache * 3 // 4 // (4 * batch + 2 * embedding_size)
        busy = self.processors * PRODUCT_BLOCK // embedding_size
        most = CHUNK_BYTES // (6 * (batch + embedding_size))
        size = tile_classes or min(max(fitting, busy), most)
        return -(-max(size, 1) // self.classes) * self.classes


# For tests with Triton's interpreter on a CPU.
SMALLEST = Blocks(batch=4, classes=8, inner=4, numbers=16, processors=5, options={})


def blocks_for(capability: tuple[int, int], processors: int, cache: int, fused: bool, slopes: bool) -> Blocks:
    """Returns the block sizes for a GPU.

    Args:
        capability: compute capability, at least (8, 0).
        processors: number of multiprocessors.
        cache: bytes of the L2 cache.
        fused: whether the kernels compute products, for which large tiles read less.
        slopes: whether the negatives have slopes, which take registers in addition to the logits.
    """
    blocks = Blocks(processors=processors, cache=cache)
    if not fused:
        return replace(blocks, batch=32)
    # Products of 128 x 128 spill registers on other GPUs than 9.0.
    return replace(blocks, classes=64) if slopes or capability != (9, 0) else blocks
