"""Settings: their declarations with bounds, and the checks of values from presets, files and the command line.

The declarations themselves are in partial_fc.settings.
"""

import ast
import copy
import difflib
import inspect
import json
import math
import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, replace
from itertools import pairwise
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any, NamedTuple

from .atomic_io import replace_file
from .json_object import read_object
from .text import quoted

SIGNS = r"""'[^']*'|"[^"]*"|[,()\[\]]"""  # of options: what separates them, and what a separator is not in
LARGEST = 1 << 20  # bytes of a settings.json, which has some 4,000
LONGEST = 100_000  # characters of options, such as the factors of 4,000 epochs


class SettingsError(ValueError):
    """An unknown setting or preset, or a value outside the bounds of its setting."""


@dataclass(frozen=True)
class Setting:
    """The declaration of one setting."""

    name: str  # as users write it
    default: Any  # the value where nobody sets another one. Its type is the type of the setting.
    help: str  # one line for ``--help``
    _: KW_ONLY
    # at_least, above, at_most, below: bounds of a number, or of each item of a list
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    multiple_of: int | None = None  # A divisor of the value
    choices: Collection[str] = ()  # the allowed values; empty for all
    item: type | None = None  # type of the items of a list or tuple, None for other settings
    length: int | None = None  # number of items, None for any number
    path: bool = False  # whether the value is the path of a file or folder
    function: bool = False  # whether config.py may give a function in place of the value
    by_epoch: bool = False  # whether a list may give a value for each epoch, the last one for all later ones
    options: tuple["Setting", ...] | None = None  # declared options, of a setting whose value is name=value,name=value
    part: str = ""  # with options: the setting that names the part which takes further options; empty for none
    trainer: str = ""  # the only trainer that has the setting, a key of TRAINERS in presets.py; empty for both

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

    @property
    def is_text(self) -> bool:
        """Whether the value is text, or a list of texts."""
        return (self.item or type(self.default)) is str

    def describe(self, other_names: str = "") -> str:
        """The help with type, bounds and other names."""
        kind = type(self.default).__name__
        if self.item:
            kind += f" of {self.length or ''} {self.item.__name__}".replace("  ", " ")
        facts = (
            kind,
            "in config.py a function" if self.function else "",
            self.bounds,
            "one of " + ", ".join(filter(None, self.choices)) if self.choices else "",
            other_names,
            f"{self.trainer} trainer only" if self.trainer else "",
        )
        return f"{self.help} ({', '.join(filter(None, facts))})"

    def parse(self, text: str) -> Any:
        """Returns what is written on a command line for this setting; `check` has not seen it.

        A text stays as it is, whatever it looks like, but for its quotes; everything else is a Python literal.
        """
        return _read(text, self.is_text)

    def check(self, value: Any) -> Any:
        """Returns ``value`` as the type of the setting; integers become floats, and lists and tuples each other.

        Raises:
            SettingsError: It has another type or is outside the bounds.
        """
        kind = type(self.default)
        if self.options is not None and isinstance(value, Options):
            return value
        if self.function and callable(value):
            return value
        if self.by_epoch and isinstance(value, (list, tuple)) and value:
            return [self._check_one(each, kind) for each in value]
        if not self.item:
            return self._check_one(value, kind)
        if self.item is str and isinstance(value, str):  # on the command line, with or without brackets and quotes
            parts = (part.strip(" '\"") for part in value.strip(" []()").split(","))
            value = [part for part in parts if part]
        if self.length is None and type(value) in (int, float):  # on the command line, of a list with one number
            value = [value]
        if not isinstance(value, (list, tuple)):
            function = ", or in config.py a function" if self.function else ""
            expected = f"of type {kind.__name__}, such as {self.default!r}{function}"
            raise SettingsError(f"{self.name} is {quoted(value)}, but must be {expected}")
        if self.length not in (None, len(value)):
            raise self._error(value, f"{self.length} values, such as {self.default!r}")
        return kind(self._check_one(item, self.item) for item in value)

    def _check_one(self, value: Any, kind: type) -> Any:
        numbers = {int: Integral, float: Real}.get(kind)
        if numbers and isinstance(value, numbers) and type(value) is not bool:  # also one of NumPy
            try:
                value = kind(value)
            except OverflowError:
                value = math.inf
        actual = type(value)  # instead of isinstance(): to Python, a bool is an int
        if actual is not kind:
            raise self._error(value, f"of type {kind.__name__}, such as {self.default!r}")
        if self.choices:
            choose(self.name, value, self.choices)
        if kind is int and abs(value) >= 2**63:
            raise self._error(value, "below 2^63")
        if self.path and "\0" in value:
            raise self._error(value, "a path")
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
        return SettingsError(f"{self.name} {verb} {quoted(value)}, but must be {expected}")


class Options(dict[str, Any]):
    """The options of one part: name -> text, or None for its default; a user's function is itself."""

    def __str__(self) -> str:
        return ",".join(f"{name}={text}" for name, text in self.items() if text is not None)

    def add(self, name: str, text: Any) -> None:
        """Adds an option; raises SettingsError if it has another value."""
        if self.setdefault(name, text) != text:
            raise SettingsError(f"option {name} is given as {self[name]} and {text}: set one")


class Alias(NamedTuple):
    """What an earlier name of a setting, or its name in another program, stands for.

    An option that has the default of the earlier setting is not set.
    """

    setting: str
    options: tuple[str, ...] = ()  # of that setting; several take the items of a list
    declared: Setting | None = None  # the earlier setting; None for one that is declared as it was
    # The part that has the option, as a value of the setting that names parts; empty for no certain one.
    of_part: str = ""


class Schema:
    """All settings of a program.

    Args:
        rows: The settings, and titles of sections between them, in the order of ``--help``.
        hints: Name that is not a setting, but was one, here or elsewhere -> what to do instead, for the error.
        alternatives: Groups of settings of which one replaces the others: name -> the value with which it does not; of
            several, a tuple.
        aliases: Other name that users may write -> what it stands for.

    Attributes:
        rows, aliases: As given.
        settings: Name -> setting.
    """

    def __init__(
        self,
        *rows: str | Setting,
        hints: Mapping[str, str],
        alternatives: Collection[Mapping[str, Any]] = (),
        aliases: Mapping[str, Alias] = MappingProxyType({}),
    ):
        self.rows, self._hints, self._alternatives, self.aliases = rows, hints, alternatives, aliases
        self.settings = {row.name: row for row in rows if isinstance(row, Setting)}

    def defaults(self) -> dict[str, Any]:
        """A fresh copy of every setting with its default."""
        return {name: copy.copy(setting.default) for name, setting in self.settings.items()}

    def read(self, source: str, values: Mapping[str, Any], trainer: str = "") -> dict[str, Any]:
        """Checks the values of one source.

        Args:
            source: Where they come from, for errors.
            values: By name or alias.
            trainer: The trainer that will use them; empty for any.

        Returns:
            The values as the types of their settings, by name; `Options` for those that have options. Among them are
            the defaults of those that one of the values replaces.

        Raises:
            SettingsError: A name is unknown or of another trainer, a value has another type or is outside its bounds,
                or there are two alternatives.
        """
        try:
            if not isinstance(values, Mapping):
                raise SettingsError(f"config is {quoted(values)}, but must be a dictionary; an EasyDict is one")
            return self._reset(self.translate(values, trainer))
        except SettingsError as error:
            raise SettingsError(f"{source}: {error}" if source else str(error)) from None

    def names_in(self, values: Iterable[str]) -> set[str]:
        """Returns the settings for which names and aliases stand."""
        return {self.aliases[name].setting if name in self.aliases else name for name in values}

    def translate(self, values: Mapping[str, Any], trainer: str = "") -> dict[str, Any]:
        """Returns checked values by today's names; for arguments and errors see `read`."""
        read: dict[str, Any] = {}
        names: dict[str, str] = {}  # setting -> as which it was given
        for given, value in values.items():
            for name, checked in self._read_one(given, value, trainer):
                if isinstance(checked, Options):
                    options = read.setdefault(name, Options())
                    for option, text in checked.items():
                        options.add(option, text)
                elif read.setdefault(name, checked) != checked:
                    if self.names_in((names[name], given)) == {name}:
                        both = f"are one setting, given as {read[name]} and {checked}: set one"
                    else:  # two parts
                        both = "exclude each other: set one of them"
                    raise SettingsError(f"{names[name]} and {given} {both}")
                names.setdefault(name, given)
        return read

    def _read_one(self, given: str, value: Any, trainer: str) -> Iterator[tuple[str, Any]]:
        """Yields (name, value) of the settings for which a name or alias with this value stands."""
        setting, alias = self._find(given), self.aliases.get(given)
        checked = setting.check(value)
        _check_trainer(replace(setting, name=given), checked, trainer)
        if not (alias and alias.options):
            name = alias.setting if alias else given
            yield name, checked if setting.options is None else self._read_options(setting, checked, trainer)
            return
        is_set = checked != setting.default
        texts = map(to_option, checked if len(alias.options) > 1 else [checked])
        yield alias.setting, Options(zip(alias.options, texts) if is_set else dict.fromkeys(alias.options))
        if is_set and alias.of_part:
            yield self.settings[alias.setting].part, alias.of_part

    def _read_options(self, setting: Setting, value: Any, trainer: str) -> Options:
        options = value if isinstance(value, Options) else split_options(setting.name, value)
        declared = {each.name: each for each in setting.options or ()}
        try:
            for name, text in options.items():
                if name not in declared and not setting.part:
                    choose("option", name, declared)
                elif name in declared and text is not None:
                    _check_trainer(declared[name], declared[name].check(declared[name].parse(text)), trainer)
        except SettingsError as error:
            raise SettingsError(f"{setting.name}: {error}") from None
        return options

    def _reset(self, values: dict[str, Any]) -> dict[str, Any]:
        for group in self._alternatives:
            used = [name for name, unused in group.items() if name in values and not _is_unused(values[name], unused)]
            if len(used) > 1:
                raise SettingsError(f"{used[0]} and {used[1]} exclude each other: set one of them")
            if used:
                values = {**{name: copy.copy(self.settings[name].default) for name in group}, **values}
        return values

    def get(self, name: str) -> Setting | None:
        """Returns the declaration of a name or alias; None for none."""
        alias = self.aliases.get(name)
        if alias is None:
            return self.settings.get(name)
        setting = self.settings[alias.setting]
        options = {option.name: option for option in setting.options or ()}
        found = alias.declared or (options[alias.options[0]] if alias.options else setting)
        return replace(found, name=name) if alias.options else found

    def _find(self, name: str) -> Setting:
        if name in self._hints:
            raise SettingsError(f"unknown setting {name!r}: {self._hints[name]}")
        found = self.get(name)
        if found is None:
            choose("setting", name, self.settings)
        assert found is not None, "an unknown name is refused"
        return found

    def describe(self, changes: Mapping[str, Any]) -> str:
        """The text of ``--help``: every setting with its default, type and bounds; ``changes`` are other defaults."""
        lines, defaults = [], {**self.defaults(), **changes}
        for row in self.rows:
            if isinstance(row, str):
                lines += ["", f"{row}:"]
                continue
            aliases = ", ".join(self.aliases_of(row.name))
            lines += _wrapped(f"  {row.name}={defaults[row.name]}", row.describe(f"also {aliases}" if aliases else ""))
            for option in row.options or ():
                aliases = " or ".join(f"{other}=..." for other in self.aliases_of(row.name, option.name))
                lines += _wrapped(f"    {option.name}={option.default}", option.describe(aliases and f"or {aliases}"))
        return "\n".join(lines[1:])

    def aliases_of(self, name: str, *options: str) -> list[str]:
        """Returns the other names of an option, or of a setting and the options that it does not declare."""
        aliases = {other: alias.options for other, alias in self.aliases.items() if alias.setting == name}
        if not options:
            declared = {(option.name,) for option in self.settings[name].options or ()}
            return [other for other, named in aliases.items() if named not in declared]
        return [other for other, named in aliases.items() if named == options]


def _wrapped(start: str, text: str) -> list[str]:
    return textwrap.wrap(text, 120, initial_indent=f"{start} ".ljust(30), subsequent_indent=" " * 30)


def _check_trainer(setting: Setting, value: Any, trainer: str) -> None:
    """Refuses a value of a setting that only the other trainer has, unless it is the default."""
    if setting.trainer and trainer not in ("", setting.trainer) and value != setting.default:
        raise SettingsError(
            f"{setting.name} is {value!r}, but only the {setting.trainer} trainer has this setting: remove it"
        )


def _is_unused(value: Any, unused: Any) -> bool:
    return value in unused if isinstance(unused, tuple) else bool(value == unused)


def choose(kind: str, name: str, known: Collection[str]) -> None:
    """Raises SettingsError, with the nearest known name, for an unknown one of this kind, such as "network"."""
    if name in known:
        return
    near = difflib.get_close_matches(str(name)[:100], known, n=1, cutoff=0.0)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise SettingsError(f"unknown {kind} {quoted(name)}: {hint}(known: {', '.join(sorted(filter(None, known)))})")


def parse_assignments(arguments: Iterable[str], schema: "Schema | None" = None) -> dict[str, Any]:
    """Reads ``name=value`` arguments; without ``=``, a SettingsError.

    A value of a setting of ``schema`` is what `Setting.parse` makes of it; others are Python literals, or else text.
    """
    changes = {}
    for argument in arguments:
        name, equals, text = argument.partition("=")
        if not equals:
            recipe = ", and recipes to train_v2.py" if "configs/" in argument else ""
            raise SettingsError(
                f"cannot read {argument!r}: settings are given as name=value, such as sample_ratio=0.1{recipe}"
            )
        setting = schema and schema.get(name)
        changes[name] = setting.parse(text) if setting else _literal(text)
    return changes


def parse_options(setting: str, text: str, *makers: Callable[..., Any]) -> dict[str, Any]:
    """Reads the value of a setting whose form is ``name=value,name=(value,value)``.

    Args:
        setting, text: its name and value.
        makers: what will be called with the options: those that it declares as text stay text, see `Setting.parse`.
    """
    texts = set().union(*map(_text_arguments, makers))
    return {name: _read(value, name in texts) for name, value in split_options(setting, text).items()}


def split_options(setting: str, text: str) -> Options:
    """Reads the value of a setting whose form is ``name=value,name=(value,value)``; each value is still text."""
    if len(text) > LONGEST:
        raise SettingsError(f"{setting} has {len(text):,} characters, but must have at most {LONGEST:,}")
    parts = [part.partition("=") for part in _at_separators(text) if text]
    if not all(name.strip().isidentifier() and equals for name, equals, _ in parts):
        raise SettingsError(f"{setting} is {quoted(text)}, but must be name=value, separated by commas")
    return Options({name.strip(): value.strip() for name, _, value in parts})


def _at_separators(text: str) -> list[str]:
    """Splits a text at its commas outside of quotes and of closed parentheses and brackets, in linear time."""
    commas: list[int] = []
    opened: list[int] = []  # for each open parenthesis or bracket, the commas before it
    for found in re.finditer(SIGNS, text):
        sign = found.group()
        if sign == ",":
            commas.append(found.start())
        elif sign in ("(", "["):
            opened.append(len(commas))
        elif sign in (")", "]") and opened:
            del commas[opened.pop() :]
    return [text[start + 1 : end] for start, end in pairwise((-1, *commas, len(text)))]


def to_option(value: Any) -> Any:
    """Returns a value as the text of an option; a function stays what it is."""
    if callable(value):
        return value
    text = value if isinstance(value, str) else repr(value).replace(", ", ",")
    return repr(text) if isinstance(value, str) and re.search(r"[,()\[\]'\"]|^\s|\s$", text) else text


def _text_arguments(maker: Callable[..., Any]) -> set[str]:
    """The names of the arguments whose type or default is text, by the signature or by declarations as of a task."""
    names = {each.name for each in getattr(maker, "options", ()) if isinstance(each, Setting) and each.is_text}
    declared = (str, str | None, "str", "str | None", "Optional[str]")
    with suppress(TypeError, ValueError):  # it has no signature
        arguments = inspect.signature(maker).parameters.values()
        names |= {each.name for each in arguments if isinstance(each.default, str) or each.annotation in declared}
    return names


def _read(text: str, is_text: bool) -> Any:
    """Reads a text, of which only quotes are taken away, or another literal."""
    value = _literal(text)
    return text if is_text and not isinstance(value, str) else value


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
    """Writes ``settings.json`` atomically."""
    replace_file(path, [to_json(settings).encode()])


def read_settings(path: str) -> dict[str, Any]:
    """Reads the JSON object in a ``settings.json``; `Schema.read` checks what is in it."""
    try:
        return read_object(path, LARGEST)
    except OSError as error:
        raise SettingsError(f"cannot read the settings in {path}: {error.strerror}") from None
    except ValueError as error:
        raise SettingsError(f"{path} is not a settings.json: {error}") from None
