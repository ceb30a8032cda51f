"""Thumbnails of the hardest pairs of a set, embedded in the page."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from itertools import accumulate
from xml.etree.ElementTree import Element

from partial_fc.utils.text import plural

from .content import HardPair, SetResult
from .formatting import finite, is_measured
from .markup import Content, tag

MAX_BYTES = 8 << 20  # of all images of a page; those of the seven usual sets take about 1 MB


def hardest(result: SetResult, max_bytes: int) -> Content:
    """Returns both kinds of pairs, worst first, with at most ``max_bytes`` of images."""
    same = _limited([pair for pair in result.hardest if pair.same], max_bytes // 2)
    different = _limited([pair for pair in result.hardest if not pair.same], max_bytes // 2)
    threshold = finite(result.points[-1].threshold) if result.points else math.nan
    counts = f"{plural(len(same), 'pair')} of the same person and {len(different)} of different people"
    rule = f"; judged the same below {threshold:.3f}" if is_measured(threshold) else ""
    groups = [
        _group("Same person", "judged different", same, threshold),
        _group("Different people", "judged the same", different, threshold),
    ]
    return [tag("p", f"{counts}, of {result.pairs:,}{rule}.", class_="soft"), tag("div", groups, class_="kinds")]


def _limited(pairs: Sequence[HardPair], max_bytes: int) -> list[HardPair]:
    """Returns the first pairs, with at most ``max_bytes`` of images."""
    sizes = accumulate(len(pair.left) + len(pair.right) for pair in pairs)
    return [pair for pair, size in zip(pairs, sizes) if size <= max_bytes]


def _group(who: str, judged: str, pairs: Sequence[HardPair], threshold: float) -> Content:
    """Returns one kind of pairs: first those judged wrongly, then those closest to the threshold."""
    if not pairs:
        return ()
    if math.isnan(threshold):
        return tag("div", tag("h4", who), _list(pairs))
    wrong = [pair for pair in pairs if (pair.distance < threshold) != pair.same]
    right = [pair for pair in pairs if (pair.distance < threshold) == pair.same]
    parts = [tag("h4", f"{who}, {judged}"), _list(wrong) if wrong else tag("p", "None.", class_="soft")]
    if right:
        parts += [tag("p", "Judged correctly, closest to the threshold:", class_="soft"), _list(right)]
    return tag("div", parts)


def _list(pairs: Sequence[HardPair]) -> Element:
    return tag("ul", [_thumbnails(pair) for pair in pairs], class_="pairs")


def _thumbnails(pair: HardPair) -> Element:
    images = [_image(pair.left, f"pair {pair.number}, left"), _image(pair.right, f"pair {pair.number}, right")]
    caption = tag("span", tag("b", f"{pair.distance:.3f}"), f" pair {pair.number:,}", class_="caption")
    return tag("li", tag("span", images, class_="images"), caption)


def _image(data: bytes, alt: str) -> Element:
    # Browsers recognize the format of an image by its content, whatever the address says.
    source = f"data:image/jpeg;base64,{base64.b64encode(data).decode()}"
    return tag("img", src=source, alt=alt, width=112, height=112)
