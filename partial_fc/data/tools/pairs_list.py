"""Text lists of verification pairs -> paths of image files.

A line is `pathA pathB 0|1` (1: the same person), or as in LFW's pairs.txt `name n1 n2` (the same) or
`name1 n1 name2 n2` (different), which mean name/name_0001.jpg. Fields are parted by tabs if the line has any, else by
spaces. LFW's first line, one or two numbers, and empty lines are passed over.
"""

from __future__ import annotations

import os
from typing import NamedTuple

LFW_ENDINGS = (".jpg", ".png", ".jpeg", ".webp")
SHOWN = 20  # bad lines that are named before "and n more"


class ListedPair(NamedTuple):
    """One line: its number, from 1, two paths, and whether they show one person."""

    line: int
    paths: tuple
    same: bool


def read_pairs_list(path: str, folder: str) -> list[ListedPair]:
    """The pairs of the list at `path`, whose files lie in `folder`.

    Raises OSError, or ValueError naming every line that is no pair or whose files are not there.
    """
    pairs, bad = [], []
    with open(path, encoding="utf-8-sig", errors="surrogateescape") as lines:
        for number, line in enumerate(lines, start=1):
            fields = split_line(line)
            if not fields or (number == 1 and is_lfw_head(fields)):
                continue
            try:
                pairs.append(ListedPair(number, *parse_fields(fields, folder)))
            except ValueError as error:
                bad.append(f"line {number}: {error}")
    if bad:
        more = f"\nand {len(bad) - SHOWN} more lines" if len(bad) > SHOWN else ""
        listed = "\n".join(bad[:SHOWN])
        raise ValueError(f"{path}: {len(bad)} lines cannot be used:\n{listed}{more}")
    if not pairs:
        raise ValueError(f"{path} lists no pairs")
    return pairs


def split_line(line: str) -> list[str]:
    """The fields of a line."""
    line = line.rstrip("\r\n")
    return [field.strip() for field in line.split("\t")] if "\t" in line else line.split()


def is_lfw_head(fields: list[str]) -> bool:
    """Whether this is LFW's first line: the number of pairs, after that of the folds where there are several."""
    return len(fields) <= 2 and all(field.isdigit() for field in fields)


def parse_fields(fields: list[str], folder: str) -> tuple[tuple, bool]:
    """(two paths, same) of one line. Raises ValueError, naming no file or line."""
    if len(fields) == 4 and fields[1].isdigit() and fields[3].isdigit():
        return (lfw_path(folder, fields[0], fields[1]), lfw_path(folder, fields[2], fields[3])), False
    if len(fields) == 3 and fields[1].isdigit() and fields[2].isdigit():
        return (lfw_path(folder, fields[0], fields[1]), lfw_path(folder, fields[0], fields[2])), True
    if len(fields) == 3 and fields[2] in ("0", "1"):
        return (existing(folder, fields[0]), existing(folder, fields[1])), fields[2] == "1"
    raise ValueError(f"is neither 'pathA pathB 0|1' nor 'name n1 n2' nor 'name1 n1 name2 n2': {' '.join(fields)!r}")


def lfw_path(folder: str, name: str, number: str) -> str:
    """folder/name/name_0001.jpg, or with another ending if that is there."""
    stem = os.path.join(folder, name, f"{name}_{int(number):04d}")
    for ending in LFW_ENDINGS:
        if os.path.isfile(stem + ending):
            return stem + ending
    raise ValueError(f"{stem}{LFW_ENDINGS[0]} is not there")


def existing(folder: str, path: str) -> str:
    """The path of a file in `folder`."""
    full = os.path.join(folder, path)
    if not os.path.isfile(full):
        raise ValueError(f"{full} is not there")
    return full
