"""HTML and SVG written so that nothing can be forgotten to be escaped: what is no Markup yet becomes text."""

from __future__ import annotations

import html

VOID = {"meta", "link", "img", "path", "circle", "line", "rect"}


class Markup(str):
    """Text that is HTML already."""


def join(*content) -> Markup:
    """Markup of texts, which are escaped, Markup, which is not, and sequences of both."""
    parts = []
    for item in content:
        if isinstance(item, Markup):
            parts.append(str(item))
        elif isinstance(item, str):
            parts.append(html.escape(item))
        else:
            parts.append(join(*item))
    return Markup("".join(parts))


def tag(name: str, /, *content, **attributes: object) -> Markup:
    """An element. `class_` is the attribute class, and other underscores are hyphens: aria_label is aria-label."""
    words = [name]
    for key, value in attributes.items():
        words.append(f'{key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"')
    opening = " ".join(words)
    return Markup(f"<{opening}/>") if name in VOID else Markup(f"<{opening}>{join(*content)}</{name}>")
