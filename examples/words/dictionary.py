"""Reads the lexemes of OpenCorpora's dictionary from the PyPI package pymorphy3-dicts-ru.

The data are by OpenCorpora (opencorpora.org), licensed under Creative Commons Attribution-Share Alike 3.0; the package
is by the authors of pymorphy3. Neither is part of this repository.

A lexeme consists of a normal form and a paradigm, which is a list of (suffix, tag, prefix) for each word form. The
first one is the normal form. words.dawg contains (paradigm, position in it) for each word form. The other files are in
pymorphy2's format 2.4.
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
    """The paradigm of a lexeme."""

    affixes: tuple[tuple[str, str], ...]  # (prefix, suffix) of each word form, beginning with the normal form

    def forms(self, normal: str) -> list[str]:
        """Returns the distinct word forms of a lexeme in the order of the paradigm, beginning with the normal form."""
        prefix, suffix = self.affixes[0]
        stem = normal[len(prefix) : len(normal) - len(suffix)]
        return list(dict.fromkeys(before + stem + after for before, after in self.affixes))


def dictionary_version() -> str:
    """Returns the version of the package, which contains the revision of OpenCorpora."""
    return version(PACKAGE)


def read_lexemes(prefix: str = "") -> Iterator[list[str]]:
    """Yields the distinct word forms of each lexeme, beginning with the normal form, sorted by the normal forms.

    Reading all of them takes half a minute.

    Args:
        prefix: beginning of the normal forms to read.
    """
    folder = Path(pymorphy3_dicts_ru.get_path())
    paradigms = read_paradigms(folder)
    words = RecordDAWG(">HH").load(str(folder / "words.dawg"))
    with progress(0, "form", "reading the dictionary") as bar:
        for word, (paradigm, position) in words.iteritems(prefix):
            bar.update(1)
            if position == 0:
                yield paradigms[paradigm].forms(word)


def read_paradigms(folder: Path) -> list[Paradigm]:
    """Reads the paradigms of a dictionary."""
    prefixes = dict(json.loads((folder / "meta.json").read_text()))["compile_options"]["paradigm_prefixes"]
    suffixes = json.loads((folder / "suffixes.json").read_text(encoding="utf-8"))
    numbers = np.fromfile(folder / "paradigms.array", "<u2").tolist()
    # The file has the number of paradigms, then the length of each paradigm and its suffixes, tags and prefixes.
    paradigms, start = [], 1
    for _ in range(numbers[0]):
        count, end = numbers[start] // 3, start + 1 + numbers[start]
        paradigm = numbers[start + 1 : end]
        affixes = zip(paradigm, paradigm[2 * count :])
        paradigms.append(Paradigm(tuple((prefixes[prefix], suffixes[suffix]) for suffix, prefix in affixes)))
        start = end
    return paradigms
