"""`identities.txt` of a face set: one line `label<TAB>name` per identity, in label order.

The names are those of the folders that the set was packed from. Bytes that are not UTF-8 are preserved.
"""

import os
from collections.abc import Iterable, Sequence

import numpy as np

from partial_fc.utils.text import read_lines

FILE = "identities.txt"


def write_names(folder: str | os.PathLike, names: Iterable[str]) -> None:
    """Writes folder/identities.txt. Raises as check_names."""
    names = check_names(names)
    with open(os.path.join(folder, FILE), "w", newline="\n", encoding="utf-8", errors="surrogateescape") as file:
        for label, name in enumerate(names):
            file.write(f"{label}\t{name}\n")


def check_names(names: Iterable[str]) -> list[str]:
    """Returns the names. Raises ValueError for a name with tabs or line ends."""
    names = list(names)
    for name in names:
        if any(character in name for character in "\t\n\r"):
            raise ValueError(f"identity {name!r}: a name must not hold tabs or line ends: rename its folder")
    return names


def read_names(rec_path: str | os.PathLike, identities: int) -> list[str] | None:
    """Reads the names of a set's identities by label; None without the file. Raises ValueError if it does not match."""
    path = os.path.join(os.path.dirname(os.fspath(rec_path)), FILE)
    if not os.path.isfile(path):
        return None
    names = parse_names(path)
    if len(names) != identities:
        raise ValueError(
            f"{path} has {len(names)} lines, but must have one line 'label<TAB>name' for each of the {identities} "
            "identities: fix or remove it"
        )
    return names


def parse_names(path: str) -> list[str]:
    """Reads the names in a file. Raises ValueError for a line that is not the next label and a name."""
    names = []
    for label, line in enumerate(read_lines(path, any_bytes=True)):
        number, tab, name = line.partition("\t")
        if number != str(label) or not tab:
            raise ValueError(
                f"{path}, line {label + 1}: it must be '{label}<TAB>name', as the labels are in order: fix or remove "
                "the file"
            )
        names.append(name)
    return names


def names_of(rec_path: str | os.PathLike, labels: np.ndarray, identities: int) -> list[str]:
    """Returns the names of labels from the set's identities.txt; without this file, the padded labels."""
    names = read_names(rec_path, identities)
    return [names[label] if names else padded(label, identities) for label in labels.tolist()]


def padded(label: int, identities: int) -> str:
    """Returns a label with leading zeros, so that labels sort as text."""
    return str(label).zfill(len(str(max(identities - 1, 0))))


def folder_names(names: Sequence[str], labels: Sequence[str]) -> list[str]:
    """Returns a unique, valid folder name for each identity: its name if possible, otherwise its label."""
    taken: set[str] = set()
    folders = []
    for label, name in zip(labels, names):
        # Identities of a merged set are named "set/name", and `pack` reads one level of folders.
        folder = name.replace("/", "_")
        if folder.startswith(".") or not folder or "\0" in folder or len(os.fsencode(folder)) > 200:
            folder = label
        while folder in taken:
            folder = f"{folder}_{label}"
        taken.add(folder)
        folders.append(folder)
    return folders
