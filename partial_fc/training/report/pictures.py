"""Thumbnails of the hardest pairs of a set, embedded in the page."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence

from partial_fc.utils.text import plural

from .content import HardPair, SetResult
from .formatting import finite, is_measured
from .markup import Markup, join, tag

MAX_PAIRS = 12  # of each kind and set
MAX_BYTES = 8 << 20  # of all images of a page; those of the seven usual sets take about 1 MB


def hardest(result: SetResult, max_bytes: int) -> Markup:
    """Returns both kinds of pairs, worst first, with at most ``max_bytes`` of images; empty if there are none."""
    kinds = [[pair for pair in result.hardest if pair.same == same] for same in (True, False)]
    shown = [_limited(pairs[:MAX_PAIRS], max_bytes // 2) for pairs in kinds]
    threshold = finite(result.points[-1].threshold) if result.points else math.nan
    heads = ("Same person", "judged different"), ("Different people", "judged the same")
    groups = [_group(*head, pairs, threshold) for head, pairs in zip(heads, shown) if pairs]
    if not groups:
        return Markup()
    same, different = map(len, shown)
    counts = f"{plural(same, 'pair')} of the same person and {different} of different people, of {result.pairs:,}"
    rule = f"; judged the same below {threshold:.3f}" if is_measured(threshold) else ""
    return join(tag("p", counts, rule, ".", class_="soft"), tag("div", groups, class_="kinds"))


def _limited(pairs: Sequence[HardPair], max_bytes: int) -> list[HardPair]:
    """Returns the first pairs, with at most ``max_bytes`` of images."""
    kept = []
    for pair in pairs:
        max_bytes -= len(pair.left) + len(pair.right)
        if max_bytes < 0:
            break
        kept.append(pair)
    return kept


def _group(who: str, judged: str, pairs: Sequence[HardPair], threshold: float) -> Markup:
    """Returns one kind of pairs: first those judged wrongly, then those closest to the threshold."""
    if math.isnan(threshold):
        return tag("div", tag("h4", who), _list(pairs))
    wrong = [pair for pair in pairs if (pair.distance < threshold) != pair.same]
    right = [pair for pair in pairs if (pair.distance < threshold) == pair.same]
    parts = [tag("h4", f"{who}, {judged}"), _list(wrong) if wrong else tag("p", "None.", class_="soft")]
    if right:
        parts += [tag("p", "Judged correctly, closest to the threshold:", class_="soft"), _list(right)]
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
    """Returns the MIME type of an encoded image by its first bytes; None if it is not a JPEG, PNG or WebP."""
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return None
