"""Writes the sections of a model card as Markdown, and as a page of HTML in the style of the reports."""

import re
from collections.abc import Sequence
from xml.etree.ElementTree import Element

from partial_fc.training.report.charts import Chart
from partial_fc.training.report.markup import Content, facts, table, tag
from partial_fc.training.report.page import document, figures
from partial_fc.utils.tables import markdown_table
from partial_fc.utils.text import printable

from .card_content import Bullets, Facts, Section, Table


def to_markdown(name: str, sections: Sequence[Section]) -> str:
    """Returns the card as Markdown, without the charts, whose values are in the tables."""
    parts = [f"# Model card: {_text(name)}"]
    for section in sections:
        parts.append(f"## {section.title}")
        for block in section.content:
            if isinstance(block, Table | Facts):
                heading = block.names if isinstance(block, Table) else ("", "")
                rows = [[_text(cell) for cell in row] for row in block.rows]
                parts.append("\n".join(markdown_table([_text(cell) for cell in heading], rows)))
            elif isinstance(block, Bullets):
                parts.append("\n".join(f"- {_text(line)}" for line in block.lines))
            elif isinstance(block, str):
                parts.append(_text(block))
    return "\n\n".join(parts) + "\n"


def _text(text: str) -> str:
    """Returns a text on one line, in which nothing is markup."""
    return re.sub(r"([\\`*_\[\]<>|#~])", r"\\\1", printable(" ".join(text.split())))


def to_html(name: str, sections: Sequence[Section]) -> str:
    """Returns the card as HTML5 without scripts."""
    links = [tag("a", section.title, href=f"#{section.key}") for section in sections]
    header = tag(
        "header",
        tag("p", "Model card", class_="kind"),
        tag("h1", name),
        tag("nav", links, aria_label="Sections"),
    )
    main = [tag("section", tag("h2", each.title), _blocks(each), id=each.key) for each in sections]
    return document(f"Model card: {name}", tag("body", header, tag("main", main)))


def _blocks(section: Section) -> Content:
    charts = [block for block in section.content if isinstance(block, Chart)]
    blocks = [_block(block) for block in section.content if not isinstance(block, Chart)]
    return [*blocks, *([figures(charts)] if charts else [])]


def _block(block: str | Facts | Table | Bullets) -> Element:
    if isinstance(block, Table):
        return table(block.label, block.names, block.rows, tag("caption", block.label))
    if isinstance(block, Facts):
        return facts(block.rows, "columns")
    if isinstance(block, Bullets):
        return tag("ul", [tag("li", line) for line in block.lines], class_="notices")
    return tag("p", block, class_="lead")
