"""The bytes that a rank moves in a step.

Between ranks those of ring algorithms: each rank sends as much as it receives, and no algorithm receives less.
Horovod's own messages, some 20 kB a second, are not counted. The rest is what a step reads and writes of the bank.

Shapes: B local batch, R ranks, G = B*R global batch, E embedding, L classes of a rank, S of them in a step.
"""

from collections.abc import Iterator
from typing import NamedTuple

from partial_fc.layer.label_encoding import DIGITS

from .case import FLOAT, Case, Layer, gradient_bytes, input_bytes, item_name

DOUBLE = 8  # bytes of a float64
LABEL = 8  # bytes of an int64
PAGE = 4096  # bytes; the unit in which a file is read and written
_STATISTICS = 3  # numbers of a row: maximum, sum, target logit


class Transfer(NamedTuple):
    """Bytes that a step moves."""

    way: str  # network, bank (its memory), bus (between host and GPU) or file
    name: str  # what is moved; collectives of the layer have their name in parentheses
    out: int  # sent, read, or moved to the GPU
    back: int  # received, written, or moved from the GPU


def moved_bytes(case: Case, layer: Layer) -> list[Transfer]:
    """Returns all transfers that are not empty."""
    transfers = [*_collectives(case, layer), *_bank(case, layer), *_bus(case, layer), *_file(case, layer)]
    return [transfer for transfer in transfers if transfer.out or transfer.back]


def _collectives(case: Case, layer: Layer) -> Iterator[Transfer]:
    others, parts = case.ranks - 1, case.gradient_acc
    images = others * parts * case.batch  # of this rank, to all others
    for name, nbytes in (
        ("all-gather of all labels of the update (labels)", images * LABEL * (parts > 1)),
        ("all-gather of features and labels (features)", images * (case.embedding + DIGITS) * FLOAT),
        ("all-gather of the targets' cosines (targets)", images * case.ranks * layer.sloped * DOUBLE),
        ("all-gather of statistics (softmax_statistics)", images * case.ranks * _STATISTICS * FLOAT),
        ("reduce-scatter of their gradient (feature_gradient)", images * case.embedding * FLOAT),
        ("all-reduce of the backbone's gradients", 2 * others * gradient_bytes(case) // case.ranks),
    ):
        yield Transfer("network", name, nbytes, nbytes)


def _bank(case: Case, layer: Layer) -> Iterator[Transfer]:
    read = rows = FLOAT * case.embedding * layer.sampled
    if case.trainer == "mxnet" or not layer.elsewhere:
        # Once in each pass, unless the forward pass has kept a copy; and for the update, where the copy is on the GPU.
        passes = (1 if (layer.gathered or layer.elsewhere) and layer.keeps else 2) + layer.elsewhere
        read = passes * rows + FLOAT * case.embedding * min(case.batch, layer.sampled)
        # Micro-batches change nothing: the update reads the centers once more.
        read = case.gradient_acc * read + rows * (case.gradient_acc > 1)
    states = FLOAT * sum(layer.states) * layer.sampled
    yield Transfer("bank", "class centers", read, rows)
    yield Transfer("bank", "states of their optimizer", states, states)


def _bus(case: Case, layer: Layer) -> Iterator[Transfer]:
    if layer.computes == "host":
        return
    rows = FLOAT * case.embedding * layer.sampled
    if layer.elsewhere and case.trainer == "torch":
        staged = rows + FLOAT * sum(layer.states) * layer.sampled
        yield Transfer("bus", "centers and states", staged, staged)
    elif layer.elsewhere:
        yield Transfer("bus", "centers to the GPU, their gradient back", rows * (1 if layer.keeps else 2), rows)
    if case.network:
        yield Transfer("bus", item_name(case), case.gradient_acc * case.batch * input_bytes(case), 0)


def _file(case: Case, layer: Layer) -> Iterator[Transfer]:
    if layer.bank == "file":
        centers, *states = (_touched_pages(width * FLOAT, layer) * PAGE for width in (case.embedding, *layer.states))
        yield Transfer("file", "class centers, without cached pages", centers, centers)
        yield Transfer("file", "states of their optimizer, without cached pages", sum(states), sum(states))


def _touched_pages(row_bytes: int, layer: Layer) -> int:
    """Expected number of pages that contain a row of a uniform sample."""
    rows_of_page = max(1, PAGE // row_bytes)
    share = 1 - (1 - layer.sampled / layer.classes) ** rows_of_page
    return round(share * layer.classes * max(1, row_bytes / PAGE) / rows_of_page)
