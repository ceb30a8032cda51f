"""Thumbnails or texts of the hardest pairs of a set, embedded in the page.

A pair is judged the same if its distance is below the threshold.

Shapes: P pairs.
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
Shown = Sequence[bytes | str]  # encoded images, or texts
MAX_BYTES = 8 << 20  # of all images of a page; those of the seven usual sets take about 1 MB


def hardest(result: SetResult, max_bytes: int) -> Content:
    """Returns both kinds of pairs, worst first, with at most ``max_bytes`` of images; nothing for other evaluations.

    Raises:
        OSError, ValueError: The set cannot be read again.
    """
    evaluation = result.evaluation
    if not isinstance(evaluation, PairVerification) or not evaluation.last:
        return ()
    images = evaluation.shown_items()
    if images is None:
        return ()
    distance, issame, threshold = evaluation.last.distance, evaluation.last.issame, result.points[-1].threshold
    kind, others = evaluation.kinds
    same, different = (
        _limited(pairs, images, max_bytes // 2) for pairs in hardest_pairs(distance, issame, threshold, HARDEST)
    )
    counts = f"{plural(len(same), 'pair')} of the {kind} and {len(different)} of {others}"
    wrong = (distance < threshold) != issame
    shown = {number: _thumbnails(number, distance[number], images) for number in (*same, *different)}
    groups = [
        _group(f"{kind.capitalize()}, judged different", same, wrong, shown),
        _group(f"{others.capitalize()}, judged the same", different, wrong, shown),
    ]
    text = f"{counts}, of {len(issame):,}; judged the same below {threshold:.3f}."
    return [tag("p", text, class_="soft"), tag("div", groups, class_="kinds")]


def hardest_pairs(
    distance: np.ndarray, issame: np.ndarray, threshold: float, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Finds the worst pairs of each kind: false rejects and false accepts, then the correct pairs nearest to them.

    Returns at most ``count`` indices of same pairs and of different ones, int64, worst first; of equally wrong ones the
    lower index first.
    """
    wrong_by = np.where(issame, distance - threshold, threshold - distance)
    rejects, accepts = (
        kind[np.argsort(-wrong_by[kind], kind="stable")][:count]
        for kind in (np.flatnonzero(issame), np.flatnonzero(~issame))
    )
    return rejects, accepts


def _limited(pairs: np.ndarray, images: Shown, max_bytes: int) -> list[int]:
    """Returns the first pairs, with at most ``max_bytes`` of images."""
    sizes = accumulate(len(images[2 * pair]) + len(images[2 * pair + 1]) for pair in pairs)
    return [int(pair) for pair, size in zip(pairs, sizes) if size <= max_bytes]


def _group(title: str, pairs: list[int], wrong: np.ndarray, shown: dict[int, Element]) -> Content:
    """Returns one kind of pairs: first those judged wrongly, then those closest to the threshold."""
    if not pairs:
        return ()
    wrongly = [shown[pair] for pair in pairs if wrong[pair]]
    correctly = [shown[pair] for pair in pairs if not wrong[pair]]
    parts = [tag("h4", title), tag("ul", wrongly, class_="pairs") if wrongly else tag("p", "None.", class_="soft")]
    if correctly:
        nearest = tag("p", "Judged correctly, closest to the threshold:", class_="soft")
        parts += [nearest, tag("ul", correctly, class_="pairs")]
    return tag("div", parts)


def _thumbnails(pair: int, distance: float, images: Shown) -> Element:
    both = [_image(images[2 * pair + side], f"pair {pair}, {name}") for side, name in enumerate(("left", "right"))]
    caption = tag("span", tag("b", f"{distance:.3f}"), f" pair {pair:,}", class_="caption")
    return tag("li", tag("span", both, class_="images"), caption)


def _image(data: bytes | str, alt: str) -> Element:
    if isinstance(data, str):
        return tag("span", data, aria_label=alt)
    return picture(data, alt)


def picture(data: bytes, alt: str, width: int = 112, height: int = 112) -> Element:
    """Returns an image that is embedded in the page."""
    # Browsers recognize the format of an image by its content, whatever the address says.
    source = f"data:image/jpeg;base64,{base64.b64encode(data).decode()}"
    return tag("img", src=source, alt=alt, width=width, height=height)
