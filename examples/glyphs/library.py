"""Downloads typefaces from Debian's packages, without root, and finds which characters each typeface has.

Shapes: C characters, F typefaces.
"""

import logging
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from fontTools.ttLib import TTLibError

from partial_fc.utils.process_pool import ordered_map
from partial_fc.utils.progress import progress

from .drawing import can_draw
from .typefaces import Typeface, read_typefaces

LIST = Path(__file__).with_name("packages.txt")
LIMIT = 600  # seconds for one package
ENDINGS = (".ttf", ".otf", ".ttc")


class Package(NamedTuple):
    """A Debian package of typefaces."""

    name: str
    licence: str  # licence of the typefaces
    is_new: bool  # whether the typefaces are not used in training


def packages(names: Sequence[str] | None = None) -> list[Package]:
    """Returns the packages in packages.txt, by default all. Raises ValueError for an unknown name."""
    lines = [line.split(maxsplit=2) for line in LIST.read_text().splitlines() if not line.startswith("#")]
    every = {name: Package(name, licence, use == "new") for use, name, licence in lines}
    unknown = sorted(set(names or ()) - set(every))
    if unknown:
        raise ValueError(f"{', '.join(unknown)}: not in {LIST}")
    return [every[name] for name in names or every]


class Library(NamedTuple):
    """Typefaces and their characters."""

    typefaces: list[Typeface]  # the typefaces of training, then the new ones
    draws: np.ndarray  # (F, C) bool, whether each typeface has each of CHARACTERS


def read_library(fonts: Path, workers: int, wanted: Sequence[Package]) -> Library:
    """Downloads the typefaces of some packages and reads which characters they have.

    Raises:
        OSError: the packages cannot be downloaded.
    """
    found = fetch(fonts, wanted)
    tasks = [(package.name, package.is_new, path) for package, files in found.items() for path in files]
    read: list[tuple[Typeface, np.ndarray]] = []
    with progress(len(tasks), "file", "reading typefaces") as bar:
        for _, faces in ordered_map(_read, tasks, workers):
            read += faces
            bar.update(1)
    if not read:
        raise OSError(f"no typefaces in {fonts}: run apt-get update (Debian, Ubuntu), then try again")
    read.sort(key=lambda face: face[0].is_new)  # so that an outline of a training typeface never counts as new
    return Library([typeface for typeface, _ in read], distinct(np.stack([outlines for _, outlines in read])))


def distinct(outlines: np.ndarray) -> np.ndarray:
    """Returns (F, C) bool, True for the first typeface with each outline of a character.

    Args:
        outlines: (F, C) uint64, the outline numbers of read_typefaces; 0 for none.
    """
    kept = np.zeros(outlines.shape, bool)
    for column in range(outlines.shape[1]):
        _, first = np.unique(outlines[:, column], return_index=True)
        kept[first, column] = True
    return kept & (outlines != 0)


def _read(task: tuple[str, bool, Path]) -> list[tuple[Typeface, np.ndarray]]:
    logging.getLogger("fontTools").setLevel(logging.ERROR)  # its warnings are about unused dates and names
    try:
        read = read_typefaces(*task)
    except TTLibError as error:
        print(f"{task[-1]}: {error}: left out", file=sys.stderr)
        return []
    # FreeType refuses the hinting instructions of two typefaces in Debian 12.
    return [(face, outlines) for face, outlines in read if can_draw(face, outlines)]


def fetch(folder: Path, wanted: Sequence[Package]) -> dict[Package, list[Path]]:
    """Downloads packages that are not in `folder`; returns the font files of those that apt-get can find.

    Raises:
        OSError: apt-get or dpkg-deb is missing, or fails.
    """
    found = {}
    for package in wanted:
        unpacked = folder / package.name
        if not unpacked.exists() and not _fetch_one(package.name, folder, unpacked):
            print(f"{package.name} is not among the packages of this system: left out", file=sys.stderr)
            continue
        files = sorted(path for path in unpacked.rglob("*") if path.suffix.lower() in ENDINGS and path.is_file())
        found[package] = [path for path in files if not path.is_symlink()]
    return found


def _fetch_one(name: str, folder: Path, unpacked: Path) -> bool:
    """Downloads and unpacks a package; returns False if apt-get cannot find it."""
    if _run(["apt-cache", "show", "--quiet=2", name], folder).returncode:
        return False
    for old in folder.glob(f"{name}_*.deb"):  # left over from an interrupted run
        old.unlink()
    done = _run(["apt-get", "download", "--quiet=2", name], folder)
    if done.returncode:
        raise OSError(f"apt-get download {name} failed: {done.stderr.strip()}")
    (archive,) = folder.glob(f"{name}_*.deb")
    part = folder / f"{name}.part"
    done = _run(["dpkg-deb", "--extract", archive.name, part.name], folder)
    if done.returncode:
        raise OSError(f"dpkg-deb cannot unpack {archive}: {done.stderr.strip()}")
    archive.unlink()
    part.rename(unpacked)
    return True


def _run(command: list[str], folder: Path) -> subprocess.CompletedProcess:
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT)
    except FileNotFoundError:
        raise OSError(
            f"{command[0]} is missing: the typefaces are fetched from Debian's or Ubuntu's packages"
        ) from None
    except subprocess.TimeoutExpired:
        raise OSError(f"{' '.join(command)} did not end within {LIMIT} s") from None
