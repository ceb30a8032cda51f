"""Settings: their declarations with bounds, and the checks of values from presets, files and the command line.

The declarations themselves are in default.py.
"""

from __future__ import annotations

import ast
import copy
import difflib
import json
import math
import textwrap
from collections.abc import Collection, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

from .atomic_io import replace_file


class SettingsError(ValueError):
    """An unknown setting or preset, or a value outside the bounds of its setting."""


@dataclass(frozen=True)
class Setting:
    """The declaration of one setting.

    Attributes:
        name: As users write it.
        default: The value where nobody sets another one. Its type is the type of the setting.
        help: One line for ``--help``.
        at_least, above, at_most, below: Bounds of a number, or of each item of a list.
        multiple_of: A divisor of the value.
        choices: The allowed values; empty for all.
        item: Type of the items of a list or tuple, None for other settings.
        length: Number of items, None for any number.
        path: Whether the value is the path of a file or folder.
    """

    name: str
    default: Any
    help: str
    _: KW_ONLY
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    multiple_of: int | None = None
    choices: Collection[str] = ()
    item: type | None = None
    length: int | None = None
    path: bool = False

    @property
    def bounds(self) -> str:
        """The bounds in words, such as "at least 0 and below 1"; empty if there are none."""
        limits = {
            "at least": self.at_least,
            "above": self.above,
            "at most": self.at_most,
            "below": self.below,
            "a multiple of": self.multiple_of,
        }
        return " and ".join(f"{words} {limit}" for words, limit in limits.items() if limit is not None)

    def describe(self) -> str:
        """The help with type and bounds."""
        kind = type(self.default).__name__
        if self.item:
            kind += f" of {self.length or ''} {self.item.__name__}".replace("  ", " ")
        choices = "one of " + ", ".join(filter(None, self.choices)) if self.choices else ""
        return f"{self.help} ({', '.join(filter(None, [kind, self.bounds, choices]))})"

    def check(self, value: Any) -> Any:
        """Returns ``value`` as the type of the setting; integers become floats, and lists and tuples each other.

        Raises:
            SettingsError: It has another type or is outside the bounds.
        """
        kind = type(self.default)
        if not self.item:
            return self._check_one(value, kind)
        if not isinstance(value, (list, tuple)):
            raise self._error(value, f"of type {kind.__name__}, such as {self.default!r}")
        if self.length not in (None, len(value)):
            raise self._error(value, f"{self.length} values, such as {self.default!r}")
        return kind(self._check_one(item, self.item) for item in value)

    def _check_one(self, value: Any, kind: type) -> Any:
        if kind is float and type(value) is int:
            value = float(value) if abs(value) < 2**1023 else math.inf
        actual = type(value)  # instead of isinstance(): to Python, a bool is an int
        if actual is not kind:
            raise self._error(value, f"of type {kind.__name__}, such as {self.default!r}")
        if self.choices:
            choose(self.name, value, self.choices)
        if kind is float and not math.isfinite(value):
            raise self._error(value, "a finite number" + (f", {self.bounds}" if self.bounds else ""))
        if not self._is_within(value):
            raise self._error(value, self.bounds)
        return value

    def _is_within(self, value: Any) -> bool:
        return (
            (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
            and (self.multiple_of is None or value % self.multiple_of == 0)
        )

    def _error(self, value: Any, expected: str) -> SettingsError:
        verb = "contains" if self.item and not isinstance(value, (list, tuple)) else "is"
        return SettingsError(f"{self.name} {verb} {value!r}, but must be {expected}")


class Schema:
    """All settings of a program.

    Args:
        rows: The settings, and titles of sections between them, in the order of ``--help``.
        former_names: Earlier name -> name of a setting that was renamed, for the error about the earlier one.

    Attributes:
        settings: Name -> setting.
    """

    def __init__(self, *rows: str | Setting, former_names: Mapping[str, str]):
        self._rows, self._former_names = rows, former_names
        self.settings = {row.name: row for row in rows if isinstance(row, Setting)}

    def merge(self, *layers: tuple[str, Mapping[str, Any]]) -> dict[str, Any]:
        """The defaults, changed by the layers in turn.

        Args:
            layers: Pairs of where the values come from, for errors, and the values by name.

        Raises:
            SettingsError: A name is unknown, or a value has another type or is outside its bounds.
        """
        merged = {name: copy.copy(setting.default) for name, setting in self.settings.items()}
        for source, changes in layers:
            for name, value in changes.items():
                try:
                    merged[name] = self._find(name).check(value)
                except SettingsError as error:
                    raise SettingsError(f"{source}: {error}" if source else str(error)) from None
        return merged

    def _find(self, name: str) -> Setting:
        if name in self._former_names:
            raise SettingsError(f"unknown setting {name!r}: its name is now {self._former_names[name]!r}")
        choose("setting", name, self.settings)
        return self.settings[name]

    def describe(self, column: int = 30, width: int = 120) -> str:
        """The text of ``--help``: every setting with its default, type and bounds."""
        lines = []
        for row in self._rows:
            if isinstance(row, str):
                lines += ["", f"{row}:"]
                continue
            start = f"  {row.name}={row.default} ".ljust(column)
            lines += textwrap.wrap(row.describe(), width, initial_indent=start, subsequent_indent=" " * column)
        return "\n".join(lines[1:])


def choose(kind: str, name: str, known: Collection[str]) -> None:
    """Refuses a name that is not among the known ones.

    Args:
        kind: What the name stands for, for the message: "dataset", "network", "loss", "setting".

    Raises:
        SettingsError: The name is unknown; the message has the nearest known name.
    """
    if name in known:
        return
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.0)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise SettingsError(f"unknown {kind} {name!r}: {hint}(known: {', '.join(sorted(filter(None, known)))})")


def parse_assignments(arguments: Iterable[str]) -> dict[str, Any]:
    """Reads ``name=value`` arguments: Python literals; anything else is text.

    Raises:
        SettingsError: An argument has no ``=``.
    """
    changes = {}
    for argument in arguments:
        name, equals, text = argument.partition("=")
        if not equals:
            raise SettingsError(f"cannot read {argument!r}: settings are given as name=value, such as sample_ratio=0.1")
        changes[name] = _literal(text)
    return changes


def _literal(text: str) -> Any:
    constants = {"true": True, "false": False}
    if text.lower() in constants:
        return constants[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # all that literal_eval documents
        return text


def to_json(settings: Mapping[str, Any]) -> str:
    """The document that ``--print-config`` prints, ``settings.json`` holds and ``--config`` reads."""
    return json.dumps(dict(settings), indent=2) + "\n"


def write_settings(path: str, settings: Mapping[str, Any]) -> None:
    """Writes ``settings.json`` atomically.

    Raises:
        OSError: It could not be written.
    """
    replace_file(path, [to_json(settings).encode()])


def read_settings(path: str) -> dict[str, Any]:
    """Reads a ``settings.json``; :meth:`Schema.merge` checks what is in it.

    Raises:
        SettingsError: The file cannot be read, or is not a JSON object.
    """
    try:
        with open(path, encoding="utf-8") as file:
            settings = json.load(file)
    except OSError as error:
        raise SettingsError(f"cannot read the settings in {path}: {error.strerror}") from None
    except ValueError as error:
        raise SettingsError(f"{path} is not a settings.json: {error}") from None
    if not isinstance(settings, dict):
        raise SettingsError(f"{path} is not a settings.json: expected names and values in braces")
    return settings
