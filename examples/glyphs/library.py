"""All typefaces at hand, from Debian's packages, and which of them draws which character. Needs no root.

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
    """A package of typefaces: its name, the licence of the typefaces, and whether training leaves them out."""

    name: str
    licence: str
    is_new: bool


def packages(names: Sequence[str] | None = None) -> list[Package]:
    """Returns the packages of packages.txt, or those with these names. Raises ValueError for another name."""
    lines = [line.split(maxsplit=2) for line in LIST.read_text().splitlines() if not line.startswith("#")]
    every = {name: Package(name, licence, use == "new") for use, name, licence in lines}
    unknown = sorted(set(names or ()) - set(every))
    if unknown:
        raise ValueError(f"{', '.join(unknown)}: not in {LIST}")
    return [every[name] for name in names or every]


class Library(NamedTuple):
    """The typefaces of training, then the new ones, and what each draws: (F, C) bool by typeface and CHARACTERS."""

    typefaces: list[Typeface]
    draws: np.ndarray


def read_library(fonts: Path, workers: int, wanted: Sequence[Package]) -> Library:
    """Fetches the typefaces of the wanted packages, and reads what they draw.

    Raises:
        OSError: They cannot be fetched.
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
    # No new typeface may show an outline of training.
    read.sort(key=lambda face: face[0].is_new)
    return Library([typeface for typeface, _ in read], distinct(np.stack([outlines for _, outlines in read])))


def distinct(outlines: np.ndarray) -> np.ndarray:
    """Leaves the first typeface of each outline of a character: (F, C) uint64, 0 for none -> (F, C) bool."""
    kept = np.zeros(outlines.shape, bool)
    for column in range(outlines.shape[1]):
        _, first = np.unique(outlines[:, column], return_index=True)
        kept[first, column] = True
    return kept & (outlines != 0)


def _read(task: tuple[str, bool, Path]) -> list[tuple[Typeface, np.ndarray]]:
    logging.getLogger("fontTools").setLevel(logging.ERROR)  # it warns of dates and names that nothing here reads
    try:
        read = read_typefaces(*task)
    except TTLibError as error:
        print(f"{task[-1]}: {error}: left out", file=sys.stderr)
        return []
    # Two typefaces of Debian 12 have hinting instructions that FreeType refuses.
    return [(face, outlines) for face, outlines in read if can_draw(face, outlines)]


def fetch(folder: Path, wanted: Sequence[Package]) -> dict[Package, list[Path]]:
    """Fetches what is missing in `folder`; returns the font files of the packages that this system's apt-get has.

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
    """Fetches and unpacks a package; returns False if apt-get does not know it."""
    if _run(["apt-cache", "show", "--quiet=2", name], folder).returncode:
        return False
    for old in folder.glob(f"{name}_*.deb"):  # of a run that was interrupted
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
