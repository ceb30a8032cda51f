"""Draws random verification pairs: ten folds that share no identity, without repeated pairs.

Only `Generator.random()` is used, as NumPy keeps its stream stable: a seed always gives the same list.

Shapes: P pairs, C identities; an image is (identity, number within the identity).
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from math import isqrt
from typing import TypeVar

import numpy as np

from partial_fc.utils.text import plural

Item = TypeVar("Item")
Image = tuple[int, int]
Pair = tuple[Image, Image]
FOLDS = 10


def draw_pairs(counts: Sequence[int], num_pairs: int, seed: int) -> tuple[list[Pair], list[bool]]:
    """Draws P pairs of C identities.

    Returns:
        The pairs, and whether each shows one person: in each fold P / 20 pairs of one person, then P / 20 of two.

    Raises:
        ValueError: P is not a multiple of 20, or the images do not give enough pairs.
    """
    if num_pairs < 2 * FOLDS or num_pairs % (2 * FOLDS):
        raise ValueError(
            f"pairs come in {FOLDS} folds of half same, half different: their number must be a multiple of "
            f"{2 * FOLDS}, got {num_pairs}"
        )
    random = np.random.Generator(np.random.PCG64(seed))
    # Folds of similar size: the identities are shuffled, sorted by their number of images, and dealt out in turn.
    present = [identity for identity in shuffled(range(len(counts)), random) if counts[identity] > 0]
    present.sort(key=lambda identity: -counts[identity])
    folds = [present[fold::FOLDS] for fold in range(FOLDS)]
    per_fold = num_pairs // (2 * FOLDS)
    check_capacity([[counts[identity] for identity in fold] for fold in folds], per_fold)
    pairs: list[Pair] = []
    same: list[bool] = []
    for fold in folds:
        pairs += same_pairs(fold, counts, per_fold, random)
        pairs += different_pairs(fold, counts, per_fold, random)
        same += [True] * per_fold + [False] * per_fold
    return pairs, same


def check_capacity(folds: list[list[int]], per_fold: int) -> None:
    """Raises ValueError unless every fold has `per_fold` pairs of either kind; `folds` holds numbers of images."""
    capacity = []
    for counts in folds:
        same = sum(count * (count - 1) // 2 for count in counts)
        total = sum(counts) * (sum(counts) - 1) // 2
        capacity.append(min(same, total - same))
    if not min(capacity):
        paired = sum(count > 1 for counts in folds for count in counts)
        raise ValueError(
            f"{FOLDS} folds need at least {2 * FOLDS} identities, {FOLDS} of them with 2 images or more; there are "
            f"{plural(sum(map(len, folds)), 'identity', 'identities')}, {paired} with 2 images or more"
        )
    if min(capacity) < per_fold:
        raise ValueError(
            f"these identities give {2 * FOLDS * min(capacity)} pairs in {FOLDS} folds that share no identity, not "
            f"{2 * FOLDS * per_fold}: use fewer pairs, or more identities with 2 images or more"
        )


def same_pairs(fold: list[int], counts: Sequence[int], number: int, random: np.random.Generator) -> list[Pair]:
    """Draws pairs of images of one identity, distributed evenly over the identities."""
    quotas = dict.fromkeys(fold, 0)
    capacity = {identity: counts[identity] * (counts[identity] - 1) // 2 for identity in fold}
    left = number
    while left:
        for identity in fold:
            if left and quotas[identity] < capacity[identity]:
                quotas[identity] += 1
                left -= 1
    pairs: list[Pair] = []
    for identity in fold:
        for code in choose(capacity[identity], quotas[identity], random):
            # The pair (a, b), a < b, has the number b (b - 1) / 2 + a.
            second = (1 + isqrt(1 + 8 * code)) // 2
            first = code - second * (second - 1) // 2
            pairs.append(((identity, first), (identity, second)))
    return shuffled(pairs, random)


def different_pairs(fold: list[int], counts: Sequence[int], number: int, random: np.random.Generator) -> list[Pair]:
    """Draws pairs of images of two identities, uniformly from all such pairs.

    Each such pair has a number: the images of an identity are paired with all images of the identities before it.
    """
    sizes = [counts[identity] for identity in fold]
    ends = list(accumulate(sizes))
    blocks = list(accumulate(size * (end - size) for size, end in zip(sizes, ends)))
    pairs: list[Pair] = []
    for code in choose(blocks[-1], number, random):
        index = bisect_right(blocks, code)
        before = ends[index] - sizes[index]
        image, earlier = divmod(code - (blocks[index - 1] if index else 0), before)
        other = bisect_right(ends, earlier)
        pairs.append(((fold[other], earlier - ends[other] + sizes[other]), (fold[index], image)))
    return shuffled(pairs, random)


def choose(bound: int, number: int, random: np.random.Generator) -> list[int]:
    """Draws `number` distinct values of 0 .. bound - 1 by R. Floyd's algorithm, which needs no list of all values."""
    chosen: dict[int, None] = {}
    for top in range(bound - number, bound):
        drawn = int(random.random() * (top + 1))
        chosen[top if drawn in chosen else drawn] = None
    return list(chosen)


def shuffled(items: Sequence[Item], random: np.random.Generator) -> list[Item]:
    """Returns the items in random order."""
    return [items[index] for index in np.argsort(random.random(len(items)), kind="stable")]
