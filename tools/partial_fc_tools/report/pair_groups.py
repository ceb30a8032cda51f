"""Reads the groups that a CSV file assigns to the pairs of a validation set.

It has a heading with the names of the columns, and a line for each pair, in the order of the set; fields are separated
by commas, semicolons, tabs or bars. A column ``same`` of 0 and 1, if there is one, must agree with the set: it shows
that the lines belong to the pairs.
"""

import csv
from collections import Counter
from collections.abc import Sequence

import numpy as np

from partial_fc.utils.text import plural, read_lines, some

SAME, EMPTY = "same", "(empty)"
DELIMITERS = ",;\t|"
Table = list[tuple[int, list[str]]]  # line number and fields


def read_groups(path: str, columns: Sequence[str], issame: np.ndarray) -> dict[str, list[str]]:
    """Reads the groups of the P pairs from a CSV file: column -> P names. No ``columns`` are all but `SAME`.

    Raises:
        OSError: The file cannot be read.
        ValueError: It has no such column or two, another number of lines, or does not agree with the set.
    """
    lines = [f"{line}\n" for line in read_lines(path)]
    try:
        (_, names), *rows = _table(lines) or [(1, [])]
    except csv.Error as error:
        raise ValueError(f"{path} is no CSV file: {error}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
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
    found = dict(zip(names, zip(*(fields for _, fields in rows))))
    for (number, _), value, same in zip(rows, found.get(SAME, ()), issame.tolist()):
        if value != str(int(same)):
            raise ValueError(
                f"{path}: line {number} has {SAME}={value!r}, but the set {int(same)} for this pair: the lines "
                "must be in the order of the set"
            )
    wanted = columns or [name for name in names if name not in ("", SAME)]
    return {name: [value or EMPTY for value in found[name]] for name in wanted}


def _table(lines: Sequence[str]) -> Table:
    """Divides all lines that are not empty at the delimiter that divides each into as many fields as the first."""
    tables: list[Table] = []
    for delimiter in DELIMITERS:
        reader = csv.reader(lines, delimiter=delimiter)
        tables.append([(reader.line_num, [field.strip() for field in fields]) for fields in reader if fields])
    widths = [{len(fields) for _, fields in table} for table in tables]
    even = [number for number, width in enumerate(widths) if len(width) == 1 and max(width) > 1]
    if len(even) > 1:
        both = " and at ".join(repr(DELIMITERS[number]) for number in even)
        raise ValueError(f"its lines can be divided at {both}: put fields that contain one of them in quotes")
    if even:
        return tables[even[0]]
    table = max(tables, key=lambda table: len(table[0][1]) if table else 0)  # the first of equal ones: at commas
    for number, fields in table:
        if len(fields) != len(table[0][1]):
            raise ValueError(f"line {number} has {plural(len(fields), 'field')}, but the heading {len(table[0][1])}")
    return table
