"""Writes the sections of a model card as Markdown, and as a page of HTML in the style of the reports."""

import re
from collections.abc import Iterator, Sequence
from xml.etree.ElementTree import Element

from partial_fc.training.report.markup import Content, flat
from partial_fc.training.report.page import document, sectioned_body
from partial_fc.utils.tables import markdown_table
from partial_fc.utils.text import printable

Section = tuple[str, str, Content]  # id, heading, elements


def to_html(name: str, sections: Sequence[Section]) -> str:
    """Returns the card as HTML5 without scripts."""
    return document(f"Model card: {name}", sectioned_body("Model card", name, sections))


def to_markdown(name: str, sections: Sequence[Section]) -> str:
    """Returns the card as Markdown without the charts, whose values are in the tables."""
    parts = [f"# Model card: {_escaped(name)}"]
    for _, heading, content in sections:
        blocks = [block for element in flat(content) for block in _blocks(element)]
        parts += [f"## {heading}", *blocks] if blocks else []
    return "\n\n".join(parts) + "\n"


def _blocks(element: str | Element) -> Iterator[str]:
    assert isinstance(element, Element)
    if element.tag == "p":
        yield _text(element)
    elif element.tag == "ul":
        yield "\n".join(f"- {_text(line)}" for line in element)
    elif element.tag == "dl":
        yield "\n".join(markdown_table(("", ""), [list(map(_text, pair)) for pair in element]))
    for table in element.iter("table"):
        heading, *rows = [list(map(_text, row)) for row in table.iter("tr")]
        yield "\n".join(markdown_table(heading, rows))


def _text(element: Element) -> str:
    return _escaped("".join(element.itertext()))


def _escaped(text: str) -> str:
    """Returns a text on one line in which nothing is Markdown or HTML."""
    return re.sub(r"([\\`*_\[\]<>|#~])", r"\\\1", printable(" ".join(text.split())))
