"""`identities.txt` beside a face set: who a label is, one line `label<TAB>name` an identity, in the order of labels.

Names are the folders' that the set was packed from. Bytes that are no UTF-8 are kept as they are.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

FILE = "identities.txt"


def write_names(folder: str | os.PathLike, names: Iterable[str]) -> None:
    """Write folder/identities.txt. Raises ValueError for a name that would break its lines."""
    names = check_names(names)
    with open(os.path.join(folder, FILE), "w", newline="\n", encoding="utf-8", errors="surrogateescape") as file:
        for label, name in enumerate(names):
            file.write(f"{label}\t{name}\n")


def check_names(names: Iterable[str]) -> list[str]:
    """The names. Raises ValueError for one that would break the lines of the file."""
    names = list(names)
    for name in names:
        if any(sign in name for sign in "\t\n\r"):
            raise ValueError(f"identity {name!r}: a name must not hold tabs or line ends: rename its folder")
    return names


def read_names(rec_path: str | os.PathLike, identities: int) -> list[str] | None:
    """The names of a set's identities by label, None without the file. Raises ValueError if it does not fit."""
    path = os.path.join(os.path.dirname(os.fspath(rec_path)), FILE)
    if not os.path.isfile(path):
        return None
    with open(path, newline="\n", encoding="utf-8", errors="surrogateescape") as file:
        lines = [line.rstrip("\n").split("\t", 1) for line in file]
    if [line[0] for line in lines] != [str(label) for label in range(identities)] or any(len(x) < 2 for x in lines):
        raise ValueError(
            f"{path} must have one line 'label<TAB>name' for each of the {identities} identities, in order: mend or "
            "remove it"
        )
    return [line[1] for line in lines]


def padded(label: int, identities: int) -> str:
    """A label with zeros in front, so that names sort as labels do."""
    return str(label).zfill(len(str(max(identities - 1, 0))))


def folder_names(names: Sequence[str] | None, identities: int) -> list[str]:
    """A different, safe folder name for each identity: its name where that can be one, else its padded label."""
    labels = [padded(label, identities) for label in range(identities)]
    if names is None:
        return labels
    taken: set[str] = set()
    folders = []
    for label, name in zip(labels, names):
        # Names of a merged set are "set/name"; one level of folders is what `pack` reads.
        folder = name.replace("/", "_")
        if folder.startswith(".") or not folder or "\0" in folder or len(os.fsencode(folder)) > 200:
            folder = label
        while folder in taken:
            folder = f"{folder}_{label}"
        taken.add(folder)
        folders.append(folder)
    return folders
