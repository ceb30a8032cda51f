"""Reads the groups that a CSV file assigns to the pairs of a validation set.

The file has a heading with the column names, and a line for each pair, in the order of the set; commas, semicolons,
tabs or bars separate the fields. An optional column ``same`` of 0 and 1 must agree with the set, which shows that the
lines are in the same order.
"""

import csv
from collections import Counter
from collections.abc import Sequence

import numpy as np

from partial_fc.utils.text import plural, read_lines, some

SAME, EMPTY = "same", "(empty)"
DELIMITERS = ",;\t|"


def read_groups(path: str, columns: Sequence[str], issame: np.ndarray) -> dict[str, list[str]]:
    """Reads the groups of P pairs: column -> P names. Without ``columns``, reads all columns but `SAME`.

    Raises:
        OSError: The file cannot be read.
        ValueError: A column is missing or appears twice, or the lines do not match the set.
    """
    lines = [f"{line}\n" for line in read_lines(path)]
    try:
        (_, names), *rows = _split(lines) or [(1, [])]
    except (csv.Error, ValueError) as error:
        raise ValueError(f"{path} is not a valid CSV file: {error}") from None
    twice = [name for name, count in Counter(names).items() if name and count > 1]
    if twice:
        raise ValueError(f"{path} has two columns with the name {some(twice)}: rename one")
    missing = [name for name in columns if name not in names]
    if missing:
        raise ValueError(f"{path} has no column {some(missing)}, but {some(names)}")
    if len(rows) != len(issame):
        raise ValueError(
            f"{path} has {plural(len(rows), 'line')} below its heading, but the set {plural(len(issame), 'pair')}: it "
            "needs a line for each pair, in the order of the set"
        )
    values = dict(zip(names, zip(*(fields for _, fields in rows))))
    for (number, _), value, same in zip(rows, values.get(SAME, ()), issame.tolist()):
        if value != str(int(same)):
            raise ValueError(
                f"{path}: line {number} has {SAME}={value!r}, but the set {int(same)} for this pair: the lines "
                "must be in the order of the set"
            )
    selected = columns or [name for name in names if name not in ("", SAME)]
    return {name: [value or EMPTY for value in values[name]] for name in selected}


def _split(lines: Sequence[str]) -> list[tuple[int, list[str]]]:
    """Splits the lines that are not empty; returns their line numbers and fields.

    The delimiter is the one that splits all lines into the same number of fields, two or more.
    """
    tables = {}
    for delimiter in DELIMITERS:
        reader = csv.reader(lines, delimiter=delimiter)
        tables[delimiter] = [(reader.line_num, [field.strip() for field in fields]) for fields in reader if fields]
    even = [key for key, rows in tables.items() if len({len(fields) for _, fields in rows}) == 1 < len(rows[0][1])]
    if len(even) > 1:
        both = " and at ".join(map(repr, even))
        raise ValueError(f"its lines can be divided at {both}: put fields that contain one of them in quotes")
    # Without such a delimiter, the one that splits the heading into the most fields shows which line is wrong.
    rows = tables[even[0]] if even else max(tables.values(), key=lambda rows: len(rows[0][1]) if rows else 0)
    for number, fields in rows:
        if len(fields) != len(rows[0][1]):
            raise ValueError(f"line {number} has {plural(len(fields), 'field')}, but the heading {len(rows[0][1])}")
    return rows
