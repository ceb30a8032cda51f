"""The sizes of the kernels' blocks.

They are chosen so that no kernel spills registers in loops and all of them fit into the shared memory of their card,
which tests/torch/test_kernel_compilation.py shows with the compiler; their speed has not been measured.
"""

from dataclasses import dataclass, field, replace
from typing import Any

CHUNK_BYTES = 256 << 20  # upper limit of the gradients of a chunk; about what a tile has in layer/tiling.py


@dataclass(frozen=True)
class Blocks:
    """Sizes of blocks, each a power of 2."""

    batch: int = 128  # rows of the batch
    classes: int = 128  # centers of a tile of logits
    centers: int = 64  # centers of a program that updates them; at most ``classes``
    embedding: int = 128  # numbers of a row in a tile of a gradient
    inner: int = 32  # numbers that a product adds up at a time; at most each of the above
    update: int = 32  # numbers of a row in an update
    processors: int = 1  # multiprocessors, among which the programs are divided
    options: dict[str, Any] = field(default_factory=lambda: {"num_warps": 8, "num_stages": 3})  # of the compiler

    def chunk(self, batch: int, embedding_size: int, tile_classes: int) -> int:
        """Returns T, the centers of a chunk: a program for each multiprocessor, unless ``tile_classes`` is set."""
        most = CHUNK_BYTES // (4 * (batch + embedding_size))
        size = tile_classes or min(self.centers * 2 * self.processors, most)
        return -(-max(size, 1) // self.classes) * self.classes


# Of Triton's interpreter, for tests on a CPU.
SMALLEST = Blocks(batch=4, classes=8, centers=4, embedding=4, inner=4, update=2, processors=5, options={})


def blocks_for(capability: tuple[int, int], processors: int, half: bool, slopes: bool) -> Blocks:
    """Returns the sizes for a GPU of a compute capability from (8, 0) on.

    ``half``: the operands are in half precision; ``slopes``: the negatives have slopes, which take registers beside the
    logits.
    """
    blocks = Blocks(inner=64 if half else 32, processors=processors)
    # Tiles of 128 x 128 logits spill on 10.x, where accumulators are read from a memory of their own, and in half
    # precision on cards for graphics.
    spills = capability[0] == 10 or half and capability not in ((8, 0), (9, 0))
    return replace(blocks, classes=64) if slopes or spills else blocks
