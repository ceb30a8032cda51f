"""Settings: refusing what is unknown with the nearest known name, and reading ``name=value`` from a command line."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterable, Mapping
from typing import Any


class SettingsError(ValueError):
    """A setting, preset or value that does not exist or cannot be."""


def choose(kind: str, name: str, known: Mapping[str, Any]) -> Any:
    """``known[name]``, or an error that names the nearest known name.

    Args:
        kind: what it is, for the message: "dataset", "network", "loss", "setting".

    Raises:
        SettingsError: there is no such name.
    """
    if name in known:
        return known[name]
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.0)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise SettingsError(f"unknown {kind} {name!r}: {hint}(known: {', '.join(sorted(known))})")


def merge(settings: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Puts ``changes`` into ``settings``, in place.

    Raises:
        SettingsError: an unknown name, or a value of another type than the one it replaces.
    """
    for name, value in changes.items():
        settings[name] = _checked(name, value, choose("setting", name, settings))


def parse_assignments(words: Iterable[str]) -> dict[str, Any]:
    """Reads ``name=value`` words: Python literals, anything else is taken as text.

    Raises:
        SettingsError: a word without ``=``.
    """
    changes = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise SettingsError(f"cannot read {word!r}: settings are given as name=value, such as sample_ratio=0.1")
        changes[name] = _literal(text)
    return changes


def _literal(text: str) -> Any:
    words = {"true": True, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _checked(name: str, value: Any, current: Any) -> Any:
    if isinstance(current, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(current, (list, tuple)) and isinstance(value, (list, tuple)):
        return type(current)(value)
    # type(), not isinstance(): bool is an int to Python but not to people.
    if type(value) is not type(current):
        raise SettingsError(f"{name} is {value!r}, but must be of type {type(current).__name__}, such as {current!r}")
    return value
