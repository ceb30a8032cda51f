"""Builds the pages with the standard library's ElementTree, which escapes all texts and attributes."""

from collections.abc import Iterable, Iterator, Sequence
from xml.etree.ElementTree import Element

from .formatting import NOT_MEASURED

Content = str | Element | Iterable["Content"]


def tag(name: str, /, *content: Content, **attributes: object) -> Element:
    """Returns an element without its empty attributes; ``class_`` is class, and ``aria_label`` is aria-label."""
    given = {key.rstrip("_").replace("_", "-"): str(value) for key, value in attributes.items() if value != ""}
    element = Element(name, given)
    for item in _flat(content):
        if isinstance(item, Element):
            element.append(item)
        elif len(element):
            element[-1].tail = (element[-1].tail or "") + item
        else:
            element.text = (element.text or "") + item
    return element


def _flat(content: Iterable[Content]) -> Iterator[str | Element]:
    for item in content:
        if isinstance(item, str | Element):
            yield item
        else:
            yield from _flat(item)


def table(label: str, names: Sequence[str], rows: Iterable[Sequence[str]], caption: Content = ()) -> Element:
    """Returns a table that scrolls if it is wider than the window; the first cell of a row names it."""
    head = tag("thead", tag("tr", [tag("th", name, scope="col") for name in names]))
    body = [tag("tr", tag("th", name, scope="row"), [tag("td", cell) for cell in cells]) for name, *cells in rows]
    content = tag("table", caption, head, tag("tbody", body))
    return tag("div", content, class_="wide", tabindex=0, role="region", aria_label=label)


def facts(pairs: Iterable[tuple[str, str]], class_: str = "") -> Element:
    """Returns a list of names and values."""
    lines = [
        tag("div", tag("dt", name), tag("dd", text, class_="none" if text == NOT_MEASURED else ""))
        for name, text in pairs
    ]
    return tag("dl", lines, class_=class_)
