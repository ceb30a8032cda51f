"""Reads the lexemes of OpenCorpora's dictionary from the PyPI package pymorphy3-dicts-ru.

The data are by OpenCorpora (opencorpora.org), licensed under Creative Commons Attribution-Share Alike 3.0; the package
is by the authors of pymorphy3. Nothing of them is in this repository.

A lexeme is a normal form and a paradigm: a list of (suffix, tag, prefix), one per word form, of which the first is the
normal form's. words.dawg holds (paradigm, place in it) of each word form; the other files are pymorphy2's format 2.4.
"""

import json
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pymorphy3_dicts_ru
from dawg_python import RecordDAWG

from partial_fc.utils.progress import progress

PACKAGE = "pymorphy3-dicts-ru"


class Paradigm(NamedTuple):
    """(prefix, suffix) of each word form of a lexeme, first the normal form's."""

    affixes: tuple[tuple[str, str], ...]

    def forms(self, normal: str) -> list[str]:
        """Returns the distinct word forms of a lexeme, first the normal form, in the order of the paradigm."""
        prefix, suffix = self.affixes[0]
        stem = normal[len(prefix) : len(normal) - len(suffix)]
        return list(dict.fromkeys(before + stem + after for before, after in self.affixes))


def dictionary_version() -> str:
    """Returns the version of the package, which names the revision of OpenCorpora."""
    return version(PACKAGE)


def read_lexemes(prefix: str = "") -> Iterator[list[str]]:
    """Yields the distinct word forms of each lexeme, first the normal form, in the order of the normal forms.

    Reading all takes half a minute.

    Args:
        prefix: only lexemes whose normal form begins with it.
    """
    folder = Path(pymorphy3_dicts_ru.get_path())
    paradigms = read_paradigms(folder)
    words = RecordDAWG(">HH").load(str(folder / "words.dawg"))
    with progress(0, "form", "reading the dictionary") as bar:
        for word, (paradigm, place) in words.iteritems(prefix):
            bar.update(1)
            if place == 0:
                yield paradigms[paradigm].forms(word)


def read_paradigms(folder: Path) -> list[Paradigm]:
    """Reads the paradigms of a dictionary."""
    prefixes = dict(json.loads((folder / "meta.json").read_text()))["compile_options"]["paradigm_prefixes"]
    suffixes = json.loads((folder / "suffixes.json").read_text(encoding="utf-8"))
    numbers = np.fromfile(folder / "paradigms.array", "<u2").tolist()
    paradigms, start = [], 1  # after their number: of each its length and its suffixes, tags and prefixes
    for _ in range(numbers[0]):
        count, end = numbers[start] // 3, start + 1 + numbers[start]
        own = numbers[start + 1 : end]
        paradigms.append(Paradigm(tuple((prefixes[p], suffixes[s]) for s, p in zip(own, own[2 * count :]))))
        start = end
    return paradigms
