"""What each typeface draws: one number per outline. Equal outlines have equal numbers.

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
LEAST_CHARACTERS = 1000  # of a typeface; others have symbols and Latin letters only


class Typeface(NamedTuple):
    """A typeface: its full name, package, file, and number within the file; whether training shows it."""

    name: str
    package: str
    path: Path
    number: int
    is_new: bool


def read_typefaces(package: str, is_new: bool, path: Path) -> list[tuple[Typeface, np.ndarray]]:
    """Reads the typefaces of a file.

    Returns:
        Each typeface with (C,) uint64, a number per outline of CHARACTERS; 0 where it draws none of its own: the
        character is missing, blank, drawn as .notdef, or drawn as another character.
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
    """Returns a function from the number of a glyph to the bytes of its outline, b"" for an empty one."""
    if "glyf" in font:
        places, data = font["loca"], font.reader["glyf"]
        return lambda glyph: data[places[glyph] : places[glyph + 1]]
    if "CFF " not in font:
        raise TTLibError("has neither TrueType nor CFF outlines")
    strings = font["CFF "].cff.topDictIndex[0].CharStrings.charStringsIndex
    return lambda glyph: strings[glyph].bytecode


def _number(outline: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(outline, digest_size=8).digest(), "little") if outline else 0
