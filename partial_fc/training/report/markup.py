"""Builds HTML with the standard library's ElementTree, which escapes all text and attributes."""

from collections.abc import Iterable, Iterator, Sequence
from xml.etree.ElementTree import Element

from .formatting import NOT_MEASURED

Content = str | Element | Iterable["Content"]


def tag(name: str, /, *content: Content, **attributes: object) -> Element:
    """Returns an element. ``class_`` sets class and ``aria_label`` aria-label; attributes that are "" are omitted."""
    named = {key.rstrip("_").replace("_", "-"): str(value) for key, value in attributes.items() if value != ""}
    element = Element(name, named)
    for item in flat(content):
        if isinstance(item, Element):
            element.append(item)
        elif len(element):
            element[-1].tail = (element[-1].tail or "") + item
        else:
            element.text = (element.text or "") + item
    return element


def flat(content: Content) -> Iterator[str | Element]:
    """Yields the texts and elements of nested content."""
    if isinstance(content, str | Element):
        yield content
    else:
        for item in content:
            yield from flat(item)


def table(label: str, names: Sequence[str], rows: Iterable[Sequence[str]], caption: Content = ()) -> Element:
    """Returns a table that scrolls when it is wider than the window; the first cell of each row is its heading."""
    head = tag("thead", tag("tr", [tag("th", name, scope="col") for name in names]))
    body = [tag("tr", tag("th", name, scope="row"), [tag("td", cell) for cell in cells]) for name, *cells in rows]
    content = tag("table", caption, head, tag("tbody", body))
    return tag("div", content, class_="wide", tabindex=0, role="region", aria_label=label)


def facts(pairs: Iterable[tuple[str, str]], class_: str = "") -> Element:
    """Returns a list of names and values."""
    rows = [
        tag("div", tag("dt", name), tag("dd", text, class_="none" if text == NOT_MEASURED else ""))
        for name, text in pairs
    ]
    return tag("dl", rows, class_=class_)
