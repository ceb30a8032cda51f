"""Writes the set of characters. A character is a class, and its renderings in different typefaces are its images.

root/train.rec, train.idx, property   CLASSES characters with IMAGES images each, in typefaces of training
root/characters.txt                   the character of each class, one per line
root/unseen_characters.bin            pairs of UNSEEN other characters in typefaces of training, in ten folds
root/unseen_typefaces.bin             pairs of the unseen characters in new typefaces
root/unseen/                          images of the unseen characters as a set, described in images.tsv
root/typefaces.tsv                    the typefaces with their packages
root/glyphs.json                      the parameters

Shapes: C characters, F typefaces.
"""

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np

from partial_fc.data.face_records import write_face_set
from partial_fc.data.pairs_bin import write_pairs
from partial_fc.data.synthetic.identity import random_stream
from partial_fc.data.synthetic.writer import SyntheticSet, draw_all
from partial_fc_tools.sets.pairs_draw import draw_pairs

from .drawing import SIZE, Drawing, draw
from .library import Library, Package
from .typefaces import CHARACTERS

VERSION = 2  # increase it with every change of pixels
DATA = Path(__file__).resolve().parents[2] / "data"
COSFACE = "--dataset", "glyphs", "--loss", "cosface"  # of a training
CHOICE, SPLIT = 101, 102  # random streams
GALLERY, TRAINED, NEW = "gallery", "trained", "new"  # kinds of images of unseen characters
REFERENCE = "Noto Sans CJK JP"  # the typeface of the gallery
PAIR_SETS = {TRAINED: "unseen_characters.bin", NEW: "unseen_typefaces.bin"}


class Size(NamedTuple):
    """The seed and the size of the set."""

    seed: int = 0
    classes: int = 20000
    unseen: int = 2000
    images: int = 20  # per class
    unseen_images: int = 8  # per unseen character and kind of typefaces, at most
    pairs: int = 6000  # per validation set


def add_folders(parser: argparse.ArgumentParser, study: str = "") -> None:
    """Adds the option --root, and for a study the option --folder, by default the folder ``study`` of models."""
    parser.add_argument("--root", type=Path, default=DATA / "glyphs", help="folder of the set (default: data/glyphs)")
    if study:
        folder = DATA.parent / "models" / study
        parser.add_argument("--folder", type=Path, default=folder, help="folder of the trainings")


def split_characters(library: Library, size: Size) -> tuple[np.ndarray, np.ndarray]:
    """Selects the characters that are in most typefaces of training.

    Returns:
        The library's columns of the characters to train on, and of the unseen characters.

    Raises:
        ValueError: too few characters are in enough typefaces.
    """
    is_new = np.array([typeface.is_new for typeface in library.typefaces])
    trained, new = library.draws[~is_new].sum(axis=0), library.draws[is_new].sum(axis=0)
    usable = (trained >= size.images) & (new >= 2) & library.draws[_reference(library)]
    total = size.classes + size.unseen
    if usable.sum() < total:
        raise ValueError(
            f"{usable.sum()} characters are drawn by {REFERENCE}, {size.images} typefaces of training and 2 new ones, "
            f"{total} are needed: name more --packages, or fewer --classes or --images"
        )
    columns = np.sort(np.argsort(np.where(usable, -trained, 1), kind="stable")[:total])
    order = random_stream(size.seed, SPLIT).random(total).argsort(kind="stable")
    return np.sort(columns[order[size.unseen :]]), np.sort(columns[order[: size.unseen]])


def choose_typefaces(library: Library, rows: np.ndarray, column: int, count: int, seed: int) -> list[int]:
    """Returns up to `count` of the typefaces `rows` that have a character, from all packages in turn."""
    available = rows[library.draws[rows, column]]
    order = random_stream(seed, CHOICE, CHARACTERS[column]).random(len(available)).argsort(kind="stable")
    by_package: dict[str, list[int]] = {}
    for row in available[order].tolist():
        by_package.setdefault(library.typefaces[row].package, []).append(row)
    in_turn = chain.from_iterable(zip_longest(*by_package.values()))
    return list(islice((row for row in in_turn if row is not None), count))


def plan_training(library: Library, columns: np.ndarray, size: Size) -> Iterator[Drawing]:
    """Yields the drawings of the training images, class by class."""
    rows = np.flatnonzero([not typeface.is_new for typeface in library.typefaces])
    for column in columns.tolist():
        chosen = choose_typefaces(library, rows, column, size.images, size.seed)
        for number, row in enumerate(chosen):
            yield Drawing(CHARACTERS[column], library.typefaces[row], number)


def plan_unseen(library: Library, columns: np.ndarray, size: Size) -> list[list[tuple[str, Drawing]]]:
    """Returns (kind, drawing) of the images of each unseen character; the first image is in the gallery."""
    is_new = np.array([typeface.is_new for typeface in library.typefaces])
    reference = library.typefaces[_reference(library)]
    trained = np.setdiff1d(np.flatnonzero(~is_new), [_reference(library)])  # the reference is in the gallery
    plan = []
    for column in columns.tolist():
        images = [(GALLERY, Drawing(CHARACTERS[column], reference, -1))]
        for kind, rows in ((TRAINED, trained), (NEW, np.flatnonzero(is_new))):
            for row in choose_typefaces(library, rows, column, size.unseen_images, size.seed):
                images.append((kind, Drawing(CHARACTERS[column], library.typefaces[row], len(images))))
        plan.append(images)
    return plan


def glyph_set(root: Path, packages: Sequence[Package], size: Size) -> SyntheticSet:
    """Returns the set in a folder. Its content is determined by these parameters and the versions of the packages."""
    names = {package.name: "new" if package.is_new else "train" for package in packages}
    parameters = {"version": VERSION, **size._asdict(), "packages": names}
    return SyntheticSet(root, "glyphs.json", parameters, ("train.rec", *PAIR_SETS.values()))


def write_files(library: Library, size: Size, workers: int, folder: Path) -> None:
    """Draws and writes the files of a set.

    Raises:
        ValueError: there are too few characters or pairs.
        OSError: a file cannot be written.
    """
    classes, others = split_characters(library, size)
    unseen = plan_unseen(library, others, size)
    pictures = draw_all(partial(draw, size.seed), list(plan_training(library, classes, size)), workers)
    write_face_set(folder, (islice(pictures, size.images) for _ in classes), (SIZE, SIZE))
    drawn = draw_all(partial(draw, size.seed), [drawing for images in unseen for _, drawing in images], workers)
    by_character = [list(islice(drawn, len(images))) for images in unseen]
    write_face_set(folder / "unseen", by_character, (SIZE, SIZE))
    for kind, name in PAIR_SETS.items():
        _write_pairs(folder / name, kind, unseen, by_character, size)
    _write_lists(folder, library, classes, unseen)


def _reference(library: Library) -> int:
    names = [typeface.name for typeface in library.typefaces]
    if REFERENCE not in names:
        raise ValueError(f"the typeface of the gallery, {REFERENCE}, is missing: add the package fonts-noto-cjk")
    return names.index(REFERENCE)


def _write_pairs(path: Path, kind: str, plan: list, pictures: Sequence[Sequence[bytes]], size: Size) -> None:
    chosen = [
        [image for (image_kind, _), image in zip(images, drawn) if image_kind == kind]
        for images, drawn in zip(plan, pictures)
    ]
    drawn, issame = draw_pairs([len(images) for images in chosen], size.pairs, size.seed)
    write_pairs(path, [chosen[identity][image] for identity, image in chain(*drawn)], issame)


def _write_lists(folder: Path, library: Library, classes: np.ndarray, unseen: list) -> None:
    characters = "".join(f"{chr(CHARACTERS[column])}\n" for column in classes.tolist())
    (folder / "characters.txt").write_text(characters, encoding="utf-8")
    lines = [f"{t.name}\t{t.package}\t{NEW if t.is_new else TRAINED}\n" for t in library.typefaces]
    (folder / "typefaces.tsv").write_text("name\tpackage\tuse\n" + "".join(lines), encoding="utf-8")
    lines = [
        f"{label}\t{chr(drawing.code)}\t{kind}\t{drawing.typeface.name}\n"
        for label, images in enumerate(unseen)
        for kind, drawing in images
    ]
    heading = "label\tcharacter\tkind\ttypeface\n"
    (folder / "unseen" / "images.tsv").write_text(heading + "".join(lines), encoding="utf-8")
