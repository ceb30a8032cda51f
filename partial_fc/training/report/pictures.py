"""The hardest pairs of a set as thumbnails within the page."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence

from partial_fc.utils.text import plural

from .markup import Markup, join, tag
from .results import HardPair, SetResult
from .wording import finite, is_measured

MOST = 12  # pairs of a kind that are shown of a set
ROOM = 8 << 20  # bytes of images in a page; those of the seven usual sets take about 1 MB


def hardest(result: SetResult, room: int) -> Markup:
    """Both kinds of pairs, worst first, with as many of each as `room` bytes of images have place for; else nothing."""
    kinds = [[pair for pair in result.hardest if pair.same == same] for same in (True, False)]
    shown = [_fitting(pairs[:MOST], room // 2) for pairs in kinds]
    threshold = finite(result.points[-1].threshold) if result.points else math.nan
    heads = ("Same person", "judged different"), ("Different people", "judged the same")
    groups = [_group(*head, pairs, threshold) for head, pairs in zip(heads, shown) if pairs]
    if not groups:
        return Markup()
    same, different = map(len, shown)
    told = f"{plural(same, 'pair')} of the same person and {different} of different people, of {result.pairs:,}"
    judged = f"; judged the same below {threshold:.3f}" if is_measured(threshold) else ""
    return join(tag("p", told, judged, ".", class_="soft"), tag("div", groups, class_="kinds"))


def _fitting(pairs: Sequence[HardPair], room: int) -> list[HardPair]:
    """The first pairs whose images fit into `room` bytes."""
    kept = []
    for pair in pairs:
        room -= len(pair.left) + len(pair.right)
        if room < 0:
            break
        kept.append(pair)
    return kept


def _group(who: str, judged: str, pairs: Sequence[HardPair], threshold: float) -> Markup:
    """One kind: the pairs that are judged wrongly, then those that nearly are."""
    if math.isnan(threshold):
        return tag("div", tag("h4", who), _list(pairs))
    wrong = [pair for pair in pairs if (pair.distance < threshold) != pair.same]
    right = [pair for pair in pairs if (pair.distance < threshold) == pair.same]
    parts = [tag("h4", f"{who}, {judged}"), _list(wrong) if wrong else tag("p", "None.", class_="soft")]
    if right:
        parts += [tag("p", "Judged rightly, but nearest to the threshold:", class_="soft"), _list(right)]
    return tag("div", parts)


def _list(pairs: Sequence[HardPair]) -> Markup:
    return tag("ul", [_thumbnails(pair) for pair in pairs], class_="pairs")


def _thumbnails(pair: HardPair) -> Markup:
    images = [
        _image(data, f"pair {pair.number}, {side}") for data, side in ((pair.left, "left"), (pair.right, "right"))
    ]
    caption = tag("span", tag("b", f"{pair.distance:.3f}"), f" pair {pair.number:,}", class_="caption")
    return tag("li", tag("span", images, class_="images"), caption)


def _image(data: bytes, alt: str) -> Markup:
    kind = mime_type(data)
    if kind is None:
        return tag("span", "unknown format", class_="no-image")
    encoded = base64.b64encode(data).decode("ascii")
    return tag("img", src=f"data:{kind};base64,{encoded}", alt=alt, width=112, height=112)


def mime_type(data: bytes) -> str | None:
    """Of an encoded image, by its first bytes; None for what is no JPEG, PNG or WebP."""
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return None
