"""Thumbnails or texts of the hardest pairs of a set, embedded in the page.

Shapes: P pairs; items 2p and 2p + 1 form pair p. A pair is judged the same if its distance is below the threshold.
"""

import base64
from collections.abc import Sequence
from itertools import accumulate
from xml.etree.ElementTree import Element

import numpy as np

from partial_fc.training.results import SetResult
from partial_fc.training.tasks.pairs import PairVerification
from partial_fc.utils.text import plural

from .markup import Content, tag

HARDEST = 8  # pairs of each kind
MAX_BYTES = 8 << 20  # of all images of a page; the seven usual sets take about 1 MB


def hardest(result: SetResult, max_bytes: int) -> Content:
    """Returns the hardest same and different pairs, with at most ``max_bytes`` of images; () for other evaluations.

    Raises:
        OSError, ValueError: The set cannot be read again.
    """
    evaluation = result.evaluation
    if not isinstance(evaluation, PairVerification) or not evaluation.last:
        return ()
    items = evaluation.shown_items()
    if items is None:
        return ()
    distance, issame, threshold = evaluation.last.distance, evaluation.last.issame, result.points[-1].threshold
    wrong = (distance < threshold) != issame
    counts, groups = [], []
    verdicts = ("judged different", "judged the same")
    for kind, verdict, pairs in zip(evaluation.kinds, verdicts, hardest_pairs(distance, issame, threshold, HARDEST)):
        sizes = accumulate(len(items[2 * pair]) + len(items[2 * pair + 1]) for pair in pairs)
        shown = [int(pair) for pair, size in zip(pairs, sizes) if size <= max_bytes // 2]
        counts.append(len(shown))
        if not shown:
            continue
        errors = [_pair(pair, distance[pair], items) for pair in shown if wrong[pair]]
        correct = [_pair(pair, distance[pair], items) for pair in shown if not wrong[pair]]
        group = [
            tag("h4", f"{kind.capitalize()}, {verdict}"),
            tag("ul", errors, class_="pairs") if errors else tag("p", "None.", class_="soft"),
        ]
        if correct:
            nearest = tag("p", "Judged correctly, closest to the threshold:", class_="soft")
            group += [nearest, tag("ul", correct, class_="pairs")]
        groups.append(tag("div", group))
    text = (
        f"{plural(counts[0], 'pair')} of the {evaluation.kinds[0]} and {counts[1]} of {evaluation.kinds[1]}, "
        f"out of {len(issame):,}. A pair whose distance is below {threshold:.3f} is judged the same."
    )
    return [tag("p", text, class_="soft"), tag("div", groups, class_="kinds")]


def hardest_pairs(
    distance: np.ndarray, issame: np.ndarray, threshold: float, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Finds the worst same and different pairs: first the wrong ones, then the correct ones nearest to the threshold.

    Returns:
        At most ``count`` indices of same pairs and of different pairs, int64, worst first; ties keep their order.
    """
    error = np.where(issame, distance - threshold, threshold - distance)
    same, different = (
        kind[np.argsort(-error[kind], kind="stable")][:count]
        for kind in (np.flatnonzero(issame), np.flatnonzero(~issame))
    )
    return same, different


def _pair(pair: int, distance: float, items: Sequence[bytes | str]) -> Element:
    both = []
    for side, name in enumerate(("left", "right")):
        item, alt = items[2 * pair + side], f"pair {pair}, {name}"
        both.append(tag("span", item, aria_label=alt) if isinstance(item, str) else picture(item, alt))
    caption = tag("span", tag("b", f"{distance:.3f}"), f" pair {pair:,}", class_="caption")
    return tag("li", tag("span", both, class_="images"), caption)


def picture(data: bytes, alt: str, width: int = 112, height: int = 112) -> Element:
    """Returns an image that is embedded in the page."""
    # Browsers detect the format from the content, whatever the address says.
    source = f"data:image/jpeg;base64,{base64.b64encode(data).decode()}"
    return tag("img", src=source, alt=alt, width=width, height=height)
