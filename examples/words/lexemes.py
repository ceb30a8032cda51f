"""The set: word forms as numbers of letters, by lexeme, in a folder that is written once.

root/letters.npy     (N, WIDTH) uint8, the letters of each word form, see `encode`; first the normal form of a lexeme
root/starts.npy      (C + 1,) int64, the first form of each lexeme, and N
root/shared.npy      (N,) bool, whether another lexeme has the same form
root/lexemes.json    what it was made of

Rows have a fixed width, not offsets: a batch is one indexing of a memory map of 100 MB, which the ranks share.

Shapes: N word forms, C lexemes.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from partial_fc.data.synthetic.identity import random_stream
from partial_fc.data.synthetic.writer import SyntheticSet

VERSION = 1  # increase it with every change of the files
DATA = Path(__file__).resolve().parents[2] / "data"
ALPHABET = "-абвгдежзийклмнопрстуфхцчшщъыьэюяё"  # numbers from 1; 0 follows a word
WIDTH = 32
CODES = 1 + len(ALPHABET)
ENCODING = "cp1251"  # a byte per letter
TO_NUMBER = bytes.maketrans(ALPHABET.encode(ENCODING), bytes(range(1, CODES)))
TO_LETTER = bytes.maketrans(bytes(range(1, CODES)), ALPHABET.encode(ENCODING))
SPLIT = 201  # stream of random numbers
LEAST_FORMS = 8  # of a lexeme to verify with: they are forms of no other one
FILES = ("letters.npy", "starts.npy", "shared.npy")


class Lexemes(NamedTuple):
    """The arrays of a set, memory maps."""

    letters: np.ndarray
    starts: np.ndarray
    shared: np.ndarray

    def forms(self, lexemes: np.ndarray) -> np.ndarray:
        """Returns the rows (n,) int64 of all forms of some lexemes, in their order."""
        firsts, counts = self.starts[lexemes], self.starts[lexemes + 1] - self.starts[lexemes]
        ends = np.cumsum(counts)
        return np.arange(counts.sum()) + np.repeat(firsts - (ends - counts), counts)


class Split(NamedTuple):
    """Lexemes to train on and lexemes to verify with, ascending."""

    trained: np.ndarray
    unseen: np.ndarray


def encode(words: Sequence[str]) -> np.ndarray:
    """Returns (n, WIDTH) uint8: the place of each letter in ALPHABET, from 1, and 0 after the word.

    Raises:
        ValueError: A word has another character, or more than WIDTH; it is named.
    """
    for word in words:
        if not is_usable(word):
            raise ValueError(f"{word!r} is not a word of 1 to {WIDTH} lower-case Russian letters and hyphens")
    padded = "".join(word.ljust(WIDTH, "\0") for word in words)
    return np.frombuffer(padded.encode(ENCODING).translate(TO_NUMBER), np.uint8).reshape(-1, WIDTH)


def encode_word(word: str) -> np.ndarray:
    """Returns (WIDTH,) uint8, for the option --reader of partial-fc; see `encode`."""
    return encode([word])[0]


def decode(letters: np.ndarray) -> list[str]:
    """Returns the words of (n, WIDTH) uint8."""
    text = np.ascontiguousarray(letters).tobytes().translate(TO_LETTER).decode(ENCODING)
    return [text[start : start + WIDTH].rstrip("\0") for start in range(0, len(text), WIDTH)]


def is_usable(word: str) -> bool:
    """Returns whether `encode` accepts a word."""
    return 0 < len(word) <= WIDTH and not set(word) - set(ALPHABET)


def lexeme_set(root: Path, prefix: str, source: str) -> SyntheticSet:
    """Returns the set in a folder: lexemes whose normal form begins with a prefix, of a version of the source."""
    return SyntheticSet(root, "lexemes.json", {"version": VERSION, "source": source, "prefix": prefix}, FILES)


def distinct(lexemes: Iterable[list[str]]) -> Iterator[list[str]]:
    """Yields the lexemes of usable words that differ from those before: some differ in grammar alone."""
    seen: set[frozenset[str]] = set()
    for forms in lexemes:
        key = frozenset(forms)
        if key not in seen and all(map(is_usable, forms)):
            seen.add(key)
            yield forms


def write_files(lexemes: Iterable[list[str]], folder: Path) -> None:
    """Writes the arrays of lexemes, each a list of distinct forms."""
    kept = list(distinct(lexemes))
    letters = encode(list(chain.from_iterable(kept)))
    words = letters.view(f"S{WIDTH}")[:, 0]
    _, inverse, counts = np.unique(words, return_inverse=True, return_counts=True)
    np.save(folder / "letters.npy", letters)
    np.save(folder / "starts.npy", np.cumsum([0, *map(len, kept)]))
    np.save(folder / "shared.npy", counts[inverse] > 1)


def read_set(root: Path) -> Lexemes:
    """Opens a set. Raises FileNotFoundError if it has not been written."""
    if not (root / "lexemes.json").exists():
        raise FileNotFoundError(f"{root} has no lexemes.json: write the set with python -m examples.words")
    return Lexemes(*(np.load(root / name, mmap_mode="r") for name in FILES))


def split_lexemes(lexemes: Lexemes, classes: int, unseen: int, seed: int) -> Split:
    """Draws lexemes to verify with, and others to train on. More classes contain those of fewer; the former stay.

    Args:
        lexemes: the set.
        classes: lexemes to train on; 0 for all others.
        unseen: lexemes to verify with, of those whose normal form and LEAST_FORMS forms are of no other lexeme.
        seed: of the draw.

    Raises:
        ValueError: There are fewer.
    """
    total = len(lexemes.starts) - 1
    order = random_stream(seed, SPLIT).random(total).argsort(kind="stable")
    own = np.add.reduceat(~lexemes.shared, lexemes.starts[:-1], dtype=np.int64)
    usable = (own >= LEAST_FORMS) & ~lexemes.shared[lexemes.starts[:-1]]
    drawn = order[usable[order]][:unseen]
    others = order[~np.isin(order, drawn)]
    if len(drawn) < unseen or len(others) < classes:
        raise ValueError(
            f"{usable.sum():,} of {total:,} lexemes can be verified with; {unseen:,} of them and {classes:,} others "
            "are needed: take fewer"
        )
    return Split(np.sort(others[: classes or None]), np.sort(drawn))
