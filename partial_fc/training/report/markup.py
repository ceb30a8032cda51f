"""Builds HTML and SVG; everything that is not Markup is escaped."""

from __future__ import annotations

import html

VOID = {"meta", "link", "img", "path", "circle", "line", "rect"}


class Markup(str):
    """A string of HTML."""


def join(*content) -> Markup:
    """Joins strings, which are escaped, Markup, which is not, and sequences of both."""
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
    """Returns an element. A trailing underscore is dropped (``class_``), others become hyphens (``aria_label``)."""
    parts = [name]
    for key, value in attributes.items():
        parts.append(f'{key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"')
    opening = " ".join(parts)
    return Markup(f"<{opening}/>") if name in VOID else Markup(f"<{opening}>{join(*content)}</{name}>")
