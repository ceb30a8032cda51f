"""What a setting is: its declaration with bounds, and how its values are read and checked.

partial_fc.settings declares the settings of the trainers.
"""

import ast
import copy
import difflib
import inspect
import json
import math
import operator
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

SIGNS = r"""'[^']*'|"[^"]*"|[,()\[\]]"""  # separators of options, and the quotes and brackets that enclose some
LARGEST = 1 << 20  # maximum bytes of a settings.json; a usual one has 4,000
LONGEST = 100_000  # maximum characters of options; the factors of 4,000 epochs are long ones
# Bound of a Setting -> its text, and a test whether a value meets it.
COMPARISONS: Mapping[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "at_least": ("at least", operator.ge),
    "above": ("above", operator.gt),
    "at_most": ("at most", operator.le),
    "below": ("below", operator.lt),
    "multiple_of": ("a multiple of", lambda value, divisor: value % divisor == 0),
}


class SettingsError(ValueError):
    """An unknown setting or preset, or a value outside the bounds of its setting."""


@dataclass(frozen=True)
class Setting:
    """The declaration of one setting."""

    name: str  # name that users write
    default: Any  # default value; its type is the type of the setting
    help: str  # one line for ``--help``
    _: KW_ONLY
    # at_least, above, at_most, below: bounds of a number, or of each item of a list
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    multiple_of: int | None = None  # required divisor of the value
    choices: Collection[str] = ()  # allowed values; empty for all
    item: type | None = None  # type of the items of a list or tuple; None for other settings
    length: int | None = None  # number of items; None for any number
    path: bool = False  # whether the value is the path of a file or folder
    function: bool = False  # whether config.py may set a function instead
    # Whether a list, also as an item of a list, may give a value for each epoch, the last one for all later epochs.
    by_epoch: bool = False
    options: tuple["Setting", ...] | None = None  # for a setting whose value is name=value,...: the declared options
    part: str = ""  # setting that selects the part that the options are for, which may take more; empty for none
    trainer: str = ""  # the only trainer that has the setting, a key of TRAINERS in presets.py; empty for both

    @property
    def bounds(self) -> str:
        """The bounds as text, such as "at least 0 and below 1"; empty if there are none."""
        limits = {words: getattr(self, name) for name, (words, _) in COMPARISONS.items()}
        return " and ".join(f"{words} {limit}" for words, limit in limits.items() if limit is not None)

    @property
    def is_text(self) -> bool:
        """Whether the value is text, or a list of texts."""
        return (self.item or type(self.default)) is str

    def describe(self, other_names: str = "") -> str:
        """Returns the help text with type, bounds and other names."""
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
        """Reads a value from the command line; `check` then checks it.

        A text setting keeps the text, without quotes around it, even if it looks like a number. Other values are Python
        literals.
        """
        return _read(text, self.is_text)

    def check(self, value: Any) -> Any:
        """Returns the value in the type of the setting: converts integers to floats, lists to tuples and back.

        Raises:
            SettingsError: The value has another type or is out of bounds.
        """
        kind = type(self.default)
        if self.function and callable(value):
            return value
        if self.by_epoch and not self.item and isinstance(value, (list, tuple)) and value:
            return [self._check_one(each, kind) for each in value]
        if not self.item:
            return self._check_one(value, kind)
        if self.item is str and isinstance(value, str):  # from the command line, with or without brackets and quotes
            parts = (part.strip(" '\"") for part in value.strip(" []()").split(","))
            value = [part for part in parts if part]
        if self.length is None and type(value) in (int, float):  # from the command line: a list of one number
            value = [value]
        if not isinstance(value, (list, tuple)):
            function = ", or in config.py a function" if self.function else ""
            example = repr(self.default) if self.default else f"{self.name}=1,2"
            expected = f"of type {kind.__name__}, such as {example}{function}"
            raise SettingsError(f"{self.name} is {quoted(value)}, but must be {expected}")
        if self.length not in (None, len(value)):
            raise self._error(value, f"{self.length} values, such as {self.default!r}")
        return kind(
            item if self.by_epoch and isinstance(item, list) else self._check_one(item, self.item) for item in value
        )

    def _check_one(self, value: Any, kind: type) -> Any:
        numbers = {int: Integral, float: Real}.get(kind)
        if numbers and isinstance(value, numbers) and type(value) is not bool:  # NumPy's numbers too
            try:
                value = kind(value)
            except OverflowError:
                value = math.inf
        actual = type(value)  # not isinstance(), for which a bool is an int
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
        for name, (_, holds) in COMPARISONS.items():
            limit = getattr(self, name)
            if limit is not None and not holds(value, limit):
                raise self._error(value, self.bounds)
        return value

    def _error(self, value: Any, expected: str) -> SettingsError:
        verb = "contains" if self.item and not isinstance(value, (list, tuple)) else "is"
        return SettingsError(f"{self.name} {verb} {quoted(value)}, but must be {expected}")


class Alias(NamedTuple):
    """What another name of a setting stands for: the setting, or some of its options."""

    setting: str
    options: tuple[str, ...] = ()  # two or more take the items of a list
    declared: Setting | None = None  # declaration of the former setting, whose default leaves the options unset
    sets_part: bool = False  # whether the option also selects the part of that name, as lr_steps selects steps


class Schema:
    """All settings of a program.

    `read` and `translate` return values by key. The key of an option is ``setting.option``, and its value is text, or
    None for the default. A setting that takes options is a key only if the source sets none of them; its value is "".

    Args:
        rows: The settings, and titles of sections between them, in the order of ``--help``.
        hints: Name of a former setting, here or in another program -> what to do instead, for the error.
        alternatives: Groups of settings of which only one is used: name -> the value that leaves it unused; None if
            there is no such value.
        aliases: Other name that users may write -> what it stands for.
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
        """Returns every setting with a fresh copy of its default."""
        return {name: copy.copy(setting.default) for name, setting in self.settings.items()}

    def read(self, source: str, values: Mapping[str, Any], trainer: str = "") -> dict[str, Any]:
        """Checks the values of one source, and adds the defaults of the alternatives that they exclude.

        Args:
            source: Where the values come from, for errors.
            values: Values by name or alias.
            trainer: The trainer that will use them; empty for any.

        Raises:
            SettingsError: A name is unknown or belongs to the other trainer, a value has another type or is out of
                bounds, or two values contradict each other.
        """
        try:
            if not isinstance(values, Mapping):
                raise SettingsError(f"config is {quoted(values)}, but must be a dictionary; an EasyDict is one")
            checked = self.translate(values, trainer)
            for group in self._alternatives:
                used = [name for name, unused in group.items() if name in checked and checked[name] != unused]
                if len(used) > 1:
                    raise SettingsError(f"{used[0]} and {used[1]} exclude each other: set one of them")
                if used:
                    checked = {**{name: copy.copy(self.settings[name].default) for name in group}, **checked}
            return checked
        except SettingsError as error:
            raise SettingsError(f"{source}: {error}" if source else str(error)) from None

    def translate(self, values: Mapping[str, Any], trainer: str = "") -> dict[str, Any]:
        """Checks values and returns them by key; see `read`."""
        checked: dict[str, Any] = {}
        name_of: dict[str, str] = {}  # key -> the name under which the user gave it
        for name, given in values.items():
            for key, value in self._read_one(name, given, trainer):
                if checked.setdefault(key, value) != value:
                    both = f"{name_of[key]} and {name} set {key} to {checked[key]} and {value}"
                    raise SettingsError(f"{both}: remove one of them")
                name_of.setdefault(key, name)
        with_options = {key.partition(".")[0] for key in checked if "." in key}
        return {key: value for key, value in checked.items() if key not in with_options}

    def _read_one(self, name: str, value: Any, trainer: str) -> Iterator[tuple[str, Any]]:
        """Yields (key, value) of everything that a name with this value sets."""
        setting, alias = self.get(name), self.aliases.get(name)
        if setting is None:
            raise self.unknown(name)
        value = setting.check(value)
        _check_trainer(setting, value, trainer)
        if alias and alias.options:
            is_set = value != setting.default
            for option, item in zip(alias.options, value if len(alias.options) > 1 else [value]):
                yield f"{alias.setting}.{option}", to_option(item) if is_set else None
            if alias.sets_part and is_set:
                yield self.settings[alias.setting].part, alias.options[0]
        elif setting.options is None:
            yield alias.setting if alias else name, value
        else:
            options, declared = split_options(name, value), {option.name: option for option in setting.options}
            if not options:
                yield name, ""
            for option, text in options.items():
                try:
                    if option in declared:
                        _check_trainer(declared[option], declared[option].check(declared[option].parse(text)), trainer)
                    elif not setting.part:
                        raise _unknown("option", option, declared)
                except SettingsError as error:
                    raise SettingsError(f"{name}: {error}") from None
                yield f"{name}.{option}", text

    def unknown(self, name: str, others: Iterable[str] = ()) -> SettingsError:
        """Returns the error for an unknown setting, with the nearest of all names and ``others``."""
        hint = self._hints.get(str(name).replace("-", "_"))
        if hint is None:
            return _unknown("setting", name, [*self.settings, *self.aliases, *others], "--help lists all settings")
        return SettingsError(f"unknown setting {name!r}: {hint}")

    def join_options(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Returns settings by name from values by key: the options of each setting become one text."""
        joined = {name: value for name, value in values.items() if "." not in name}
        for name, setting in self.settings.items():
            prefix, declared = f"{name}.", [option.name for option in setting.options or ()]
            options = {key.removeprefix(prefix): text for key, text in values.items() if key.startswith(prefix)}
            if options:  # the declared ones first, in one order, so that equal options are equal texts
                order = dict.fromkeys([*(option for option in declared if option in options), *options])
                joined[name] = join_options({option: options[option] for option in order})
        return joined

    def names_in(self, values: Iterable[str]) -> set[str]:
        """Returns the settings that names and aliases stand for."""
        return {self.aliases[name].setting if name in self.aliases else name for name in values}

    def get(self, name: str) -> Setting | None:
        """Returns the declaration of a name or alias; None for an unknown name."""
        alias = self.aliases.get(name)
        if alias is None:
            return self.settings.get(name)
        setting = self.settings[alias.setting]
        options = {option.name: option for option in setting.options or ()}
        return replace(alias.declared or (options[alias.options[0]] if alias.options else setting), name=name)

    def describe(self, changes: Mapping[str, Any]) -> str:
        """Returns the text of ``--help``: every setting with its default, type and bounds.

        ``changes``: defaults that differ from the declared ones.
        """
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
        """Returns the aliases of an option; without one, the aliases of the setting and its undeclared options."""
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


def choose(kind: str, name: str, known: Collection[str], others: str = "") -> None:
    """Raises SettingsError for an unknown name, and suggests a known one.

    Args:
        kind: A noun such as "network".
        name, known: The name, and those that are known.
        others: Words for the names that are allowed besides the known ones.
    """
    if name not in known:
        error = _unknown(kind, name, known)
        raise SettingsError(f"{error}, or {others}") if others else error


def _unknown(kind: str, name: str, known: Collection[str], where: str = "") -> SettingsError:
    near = difflib.get_close_matches(str(name)[:100].replace("-", "_"), known, n=1, cutoff=0.5)
    hint = f": did you mean {near[0]!r}?" if near else ""
    where = where or f"known: {', '.join(sorted(filter(None, known)))}"
    return SettingsError(f"unknown {kind} {quoted(name)}{hint} ({where})")


def parse_assignments(arguments: Iterable[str], schema: "Schema | None" = None) -> dict[str, Any]:
    """Reads ``name=value`` arguments; raises SettingsError for one without ``=``.

    The settings of ``schema`` read their values, see `Setting.parse`; other values are Python literals, or else text.
    """
    changes = {}
    for argument in arguments:
        name, equals, text = argument.partition("=")
        if not equals:
            recipe = ", and recipes to train_v2.py" if "configs/" in argument else ""
            raise SettingsError(
                f"cannot read {argument!r}: settings are given as name=value, such as sample_ratio=0.1, and lists "
                f"without spaces, such as lr_epochs=8,14{recipe}"
            )
        setting = schema and schema.get(name)
        changes[name] = setting.parse(text) if setting else _literal(text)
    return changes


def parse_options(setting: str, text: str, *makers: Callable[..., Any]) -> dict[str, Any]:
    """Reads the value of a setting that takes options, ``name=value,name=(value,value)``.

    Args:
        setting, text: Its name and value.
        makers: Callables that take the options. Options that they declare as text stay text, see `Setting.parse`.
    """
    texts = set().union(*map(_text_arguments, makers))
    return {name: _read(value, name in texts) for name, value in split_options(setting, text).items()}


def split_options(setting: str, text: str) -> dict[str, str]:
    """Splits the value of a setting that takes options, ``name=value,name=(value,value)``; each value stays text."""
    if len(text) > LONGEST:
        raise SettingsError(f"{setting} has {len(text):,} characters, but must have at most {LONGEST:,}")
    parts = [part.partition("=") for part in _at_separators(text) if text]
    if not all(name.strip().isidentifier() and equals for name, equals, _ in parts):
        raise SettingsError(
            f"{setting} is {quoted(text)}, but must be name=value, separated by commas; a list needs brackets, in "
            f"some shells with quotes: '{setting}=name=[1,2]'"
        )
    return {name.strip(): value.strip() for name, _, value in parts}


def join_options(options: Mapping[str, str | None]) -> str:
    """Returns options as the value of a setting, without those that are None."""
    return ",".join(f"{name}={text}" for name, text in options.items() if text is not None)


def _at_separators(text: str) -> list[str]:
    """Splits a text at commas outside of quotes and of closed parentheses and brackets.

    In linear time, because a settings.json may come from a stranger.
    """
    commas: list[int] = []
    opened: list[int] = []  # for each open parenthesis or bracket, the number of commas before it
    for match in re.finditer(SIGNS, text):
        sign = match.group()
        if sign == ",":
            commas.append(match.start())
        elif sign in ("(", "["):
            opened.append(len(commas))
        elif sign in (")", "]") and opened:
            del commas[opened.pop() :]  # the commas inside do not separate
    return [text[start + 1 : end] for start, end in pairwise((-1, *commas, len(text)))]


def to_option(value: Any) -> Any:
    """Returns a value as the text of an option; a function is returned as it is."""
    if callable(value):
        return value
    text = value if isinstance(value, str) else repr(value).replace(", ", ",")
    return repr(text) if isinstance(value, str) and re.search(r"[,()\[\]'\"]|^\s|\s$", text) else text


def _text_arguments(maker: Callable[..., Any]) -> set[str]:
    """Returns the arguments that are text, by the type or default in the signature, or by a task's declarations."""
    names = {each.name for each in getattr(maker, "options", ()) if isinstance(each, Setting) and each.is_text}
    text_types = (str, str | None, "str", "str | None", "Optional[str]")
    with suppress(TypeError, ValueError):  # it has no signature
        arguments = inspect.signature(maker).parameters.values()
        names |= {each.name for each in arguments if isinstance(each.default, str) or each.annotation in text_types}
    return names


def _read(text: str, is_text: bool) -> Any:
    """Reads a literal; text stays as it is, except that quotes around it are removed."""
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
    """Returns the document that ``--print-config`` prints, ``settings.json`` holds and ``--config`` reads."""
    return json.dumps(dict(settings), indent=2) + "\n"


def write_settings(path: str, settings: Mapping[str, Any]) -> None:
    """Writes ``settings.json`` atomically."""
    replace_file(path, [to_json(settings).encode()])


def read_settings(path: str) -> dict[str, Any]:
    """Reads the settings in a file of JSON, TOML or YAML by its ending; `Schema.read` checks their values."""
    try:
        return read_object(path, LARGEST)
    except (OSError, ValueError) as error:
        raise SettingsError(f"cannot read the settings in {path}: {getattr(error, 'strerror', error)}") from None
