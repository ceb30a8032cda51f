"""Reads text lists of verification pairs.

A line is `pathA pathB 0|1` (1: the same person), or as in LFW's pairs.txt `name n1 n2` (the same) or
`name1 n1 name2 n2` (different), which stand for files like name/name_0001.jpg. Fields are separated by tabs if the line
has any, otherwise by spaces. LFW's first line, one or two numbers, and empty lines are ignored.
"""

import os

from partial_fc.data.folder import list_folder
from partial_fc.utils.text import read_lines

LFW_ENDING = ".jpg"
SHOWN = 20  # bad lines in an error message


def read_pairs_list(path: str, folder: str) -> list[tuple[tuple[str, str], bool]]:
    """Reads the pairs of the list at `path`, whose files are in `folder`.

    Returns:
        For each pair, the two paths and whether they show the same person.

    Raises:
        OSError: the list cannot be read.
        ValueError: lines are invalid, or their files do not exist; the message lists them.
    """
    pairs, bad = [], []
    for number, line in enumerate(read_lines(path, any_bytes=True), start=1):
        fields = [field.strip() for field in line.split("\t")] if "\t" in line else line.split()
        is_head = number == 1 and len(fields) <= 2 and all(field.isdigit() for field in fields)
        if not fields or is_head:
            continue
        try:
            pairs.append(parse_fields(fields, folder))
        except ValueError as error:
            bad.append(f"line {number}: {error}")
    if bad:
        more = f"\nand {len(bad) - SHOWN} more lines" if len(bad) > SHOWN else ""
        listed = "\n".join(bad[:SHOWN])
        raise ValueError(f"{path}: {len(bad)} lines cannot be used:\n{listed}{more}")
    if not pairs:
        raise ValueError(f"{path} lists no pairs")
    return pairs


def parse_fields(fields: list[str], folder: str) -> tuple[tuple[str, str], bool]:
    """Returns (two paths, same) of a line. Raises ValueError that does not name the list."""
    if len(fields) == 4 and fields[1].isdigit() and fields[3].isdigit():
        return (lfw_path(folder, fields[0], fields[1]), lfw_path(folder, fields[2], fields[3])), False
    if len(fields) == 3 and fields[1].isdigit() and fields[2].isdigit():
        return (lfw_path(folder, fields[0], fields[1]), lfw_path(folder, fields[0], fields[2])), True
    if len(fields) == 3 and fields[2] in ("0", "1"):
        return (existing(folder, fields[0]), existing(folder, fields[1])), fields[2] == "1"
    raise ValueError(f"is neither 'pathA pathB 0|1' nor 'name n1 n2' nor 'name1 n1 name2 n2': {' '.join(fields)!r}")


def lfw_path(folder: str, name: str, number: str) -> str:
    """Returns folder/name/name_0001.jpg, or the image of that name with another extension, such as .JPG."""
    person, stem = os.path.join(folder, name), f"{name}_{int(number):04d}"
    usual = os.path.join(person, stem + LFW_ENDING)
    if os.path.isfile(usual):
        return usual
    for other in list_folder(person).images if os.path.isdir(person) else []:
        if os.path.splitext(other)[0] == stem:
            return os.path.join(person, other)
    raise ValueError(f"{usual} does not exist")


def existing(folder: str, path: str) -> str:
    """Returns the path of a file in `folder`. Raises ValueError if it does not exist."""
    full = os.path.join(folder, path)
    if not os.path.isfile(full):
        raise ValueError(f"{full} does not exist")
    return full
