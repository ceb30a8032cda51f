"""The set of word forms, with letters as numbers, in a folder that is written once.

root/letters.npy     (N, WIDTH) uint8, the letters of each word form, see `encode`; lexeme by lexeme, normal form first
root/starts.npy      (C + 1,) int64, the first form of each lexeme, and N
root/shared.npy      (N,) bool, whether another lexeme has the same form
root/lexemes.json    the parameters

Rows have a fixed width. So a batch is a single indexing operation on a memory map of 100 MB, which all ranks share.

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
ALPHABET = "-абвгдежзийклмнопрстуфхцчшщъыьэюяё"  # letters have numbers from 1; 0 is padding
WIDTH = 32
CODES = 1 + len(ALPHABET)
ENCODING = "cp1251"  # a byte per letter
TO_NUMBER = bytes.maketrans(ALPHABET.encode(ENCODING), bytes(range(1, CODES)))
TO_LETTER = bytes.maketrans(bytes(range(1, CODES)), ALPHABET.encode(ENCODING))
SPLIT = 201  # random stream
LEAST_FORMS = 8  # forms that an unseen lexeme shares with no other lexeme
FILES = ("letters.npy", "starts.npy", "shared.npy")


class Lexemes(NamedTuple):
    """The memory-mapped arrays of a set."""

    letters: np.ndarray
    starts: np.ndarray
    shared: np.ndarray

    def forms(self, lexemes: np.ndarray) -> np.ndarray:
        """Returns the rows (n,) int64 of all forms of ``lexemes``, in the same order."""
        firsts, counts = self.starts[lexemes], self.starts[lexemes + 1] - self.starts[lexemes]
        ends = np.cumsum(counts)
        return np.arange(counts.sum()) + np.repeat(firsts - (ends - counts), counts)

    def words(self, rows: np.ndarray) -> np.ndarray:
        """Returns the letters of rows (n,) as one value each, (n,), which can be sorted and compared."""
        return np.ascontiguousarray(self.letters[rows]).view(f"S{WIDTH}")[:, 0]


class Split(NamedTuple):
    """A split of the lexemes, both parts in ascending order."""

    trained: np.ndarray  # lexemes to train on
    unseen: np.ndarray  # lexemes for verification


def encode(words: Sequence[str]) -> np.ndarray:
    """Returns (n, WIDTH) uint8, the position of each letter in ALPHABET from 1, padded with 0.

    Raises:
        ValueError: a word has other characters, or more than WIDTH; the message names the word.
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
    """Returns the words for letters (n, WIDTH) uint8."""
    text = np.ascontiguousarray(letters).tobytes().translate(TO_LETTER).decode(ENCODING)
    return [text[start : start + WIDTH].rstrip("\0") for start in range(0, len(text), WIDTH)]


def is_usable(word: str) -> bool:
    """Returns whether `encode` accepts a word."""
    return 0 < len(word) <= WIDTH and not set(word) - set(ALPHABET)


def lexeme_set(root: Path, prefix: str, source: str) -> SyntheticSet:
    """Returns the set in a folder, with the lexemes of a dictionary version whose normal form has a prefix."""
    return SyntheticSet(root, "lexemes.json", {"version": VERSION, "source": source, "prefix": prefix}, FILES)


def distinct(lexemes: Iterable[list[str]]) -> Iterator[list[str]]:
    """Yields the lexemes with usable words whose forms differ from earlier lexemes; some differ only in grammar."""
    seen: set[frozenset[str]] = set()
    for forms in lexemes:
        key = frozenset(forms)
        if key not in seen and all(map(is_usable, forms)):
            seen.add(key)
            yield forms


def write_files(lexemes: Iterable[list[str]], folder: Path) -> None:
    """Writes the arrays of a set from the lists of forms of its lexemes."""
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
    """Draws unseen lexemes for verification, and others to train on.

    The unseen lexemes do not depend on ``classes``, and a larger ``classes`` includes the lexemes of a smaller one.

    Args:
        lexemes: the set.
        classes: number of lexemes to train on; 0 for all that are left.
        unseen: number of unseen lexemes. Their normal form and LEAST_FORMS forms are in no other lexeme.
        seed: seed of the draw.

    Raises:
        ValueError: there are not enough lexemes.
    """
    total = len(lexemes.starts) - 1
    order = random_stream(seed, SPLIT).random(total).argsort(kind="stable")
    unshared = np.add.reduceat(~lexemes.shared, lexemes.starts[:-1], dtype=np.int64)
    usable = (unshared >= LEAST_FORMS) & ~lexemes.shared[lexemes.starts[:-1]]
    drawn = order[usable[order]][:unseen]
    others = order[~np.isin(order, drawn)]
    if len(drawn) < unseen or len(others) < classes:
        raise ValueError(
            f"{usable.sum():,} of {total:,} lexemes have enough forms for a verification; {unseen:,} of them and "
            f"{classes:,} others are needed: take fewer"
        )
    return Split(np.sort(others[: classes or None]), np.sort(drawn))
