"""Reads untrusted JSON, and TOML and YAML. JSON and TOML need the standard library only."""

import errno
import json
import re
import sys
from itertools import pairwise
from typing import Any

from .regular_files import read_regular
from .text import quoted

EXPONENT = re.compile("[-+]?[0-9]+[eE][-+]?[0-9]+$")  # 1e-4, which YAML 1.1 reads as text


def read_object(path: str, largest: int) -> dict[str, Any]:
    """Reads a JSON object from a regular file of at most ``largest`` bytes.

    Raises:
        OSError: the file cannot be read or is not a regular file.
        ValueError: the file is too large, contains something else, or has a name twice in an object. The message does
            not name the file.
    """
    read = read_document(path, largest)
    if not isinstance(read, dict):
        raise ValueError("it is empty" if read is None else "it is not an object of names and values")
    return read


def read_document(path: str, largest: int) -> Any:
    """Reads JSON, or what the file's ending says: ``.toml``, ``.yaml`` or ``.yml``; for arguments see read_object()."""
    try:
        text = read_regular(path, largest).decode()
        if path.endswith(".toml"):
            return _read_toml(text)
        if path.endswith((".yaml", ".yml")):
            return _read_yaml(text)
        return json.loads(text, object_pairs_hook=_with_unique_names)
    except RecursionError as error:
        raise ValueError(f"it is nested too deeply: {error}") from None
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        raise ValueError(f"it has {error.strerror}") from None


def _with_unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    read = dict(pairs)
    if len(read) < len(pairs):
        names = sorted(name for name, _ in pairs)
        raise ValueError(f"it has {quoted(next(a for a, b in pairwise(names) if a == b))} twice: remove one")
    return read


def _read_toml(text: str) -> Any:
    if sys.version_info >= (3, 11):
        import tomllib

        return tomllib.loads(text)
    raise ValueError("Python 3.10 reads no TOML: write JSON")


def _read_yaml(text: str) -> Any:
    try:
        import yaml
    except ModuleNotFoundError:
        raise ValueError("reading YAML needs PyYAML: run `pip install pyyaml`, or write JSON or TOML") from None

    class Loader(yaml.SafeLoader):
        """A loader that reads 1e-4 as a number, and refuses a name that a mapping has twice."""

        def construct_mapping(self, node, deep=False):
            _with_unique_names([(str(key.value), None) for key, _ in node.value])
            return super().construct_mapping(node, deep)

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", EXPONENT, list("-+0123456789"))
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)):
            raise ValueError("it has aliases, which can stand for billions of values: write them out")
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None
