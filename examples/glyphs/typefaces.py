"""Reads typefaces: a number for the outline of each character. Equal outlines have equal numbers.

Shapes: C characters, F typefaces.
"""

import hashlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from fontTools.ttLib import TTCollection, TTFont, TTLibError

# Han (the first block) and Hangul syllables.
CHARACTERS = (*range(0x4E00, 0xA000), *range(0xAC00, 0xD7A4))
BLANKS = (0x20, 0x3000)
LEAST_CHARACTERS = 1000  # typefaces with fewer characters are for symbols and Latin letters


class Typeface(NamedTuple):
    """A typeface in a font file."""

    name: str  # full name
    package: str
    path: Path
    number: int  # within the file
    is_new: bool  # whether it is not used in training


def read_typefaces(package: str, is_new: bool, path: Path) -> list[tuple[Typeface, np.ndarray]]:
    """Reads the typefaces of a file.

    Returns:
        Each typeface with (C,) uint64, the number of the outline of each of CHARACTERS. It is 0 for characters that are
        missing or blank, or that look like .notdef or another character.
    """
    if path.suffix.lower() == ".ttc":
        with TTCollection(str(path), lazy=True) as collection:
            count = len(collection.fonts)
    else:
        count = 1
    found = []
    for number in range(count):
        with TTFont(str(path), fontNumber=number if count > 1 else -1, lazy=True) as font:
            outlines = outline_numbers(font)
            if np.count_nonzero(outlines) >= LEAST_CHARACTERS:
                name = font["name"].getBestFullName() or path.stem
                found.append((Typeface(name, package, path, number, is_new), outlines))
    return found


def outline_numbers(font: TTFont) -> np.ndarray:
    """Returns (C,) uint64, see read_typefaces."""
    names = font.getBestCmap() or {}
    read = _outline_reader(font)
    order = font.getReverseGlyphMap()
    outlines = [read(order[names[code]]) if code in names else b"" for code in CHARACTERS]
    numbers = np.array([_number(outline) for outline in outlines], np.uint64)
    useless = {_number(read(0))} | {_number(read(order[names[code]])) for code in BLANKS if code in names}
    shared = [number for number, times in Counter(numbers.tolist()).items() if times > 1]
    numbers[np.isin(numbers, np.array([*useless, *shared], np.uint64))] = 0
    return numbers


def _outline_reader(font: TTFont) -> Callable[[int], bytes]:
    """Returns a function that maps the number of a glyph to the bytes of its outline; b"" if it is empty."""
    if "glyf" in font:
        offsets, data = font["loca"], font.reader["glyf"]
        return lambda glyph: data[offsets[glyph] : offsets[glyph + 1]]
    if "CFF " not in font:
        raise TTLibError("has neither TrueType nor CFF outlines")
    strings = font["CFF "].cff.topDictIndex[0].CharStrings.charStringsIndex
    return lambda glyph: strings[glyph].bytecode


def _number(outline: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(outline, digest_size=8).digest(), "little") if outline else 0
