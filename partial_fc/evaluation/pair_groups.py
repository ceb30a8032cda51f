"""Reads the groups that a CSV file assigns to the pairs of a validation set.

It has a heading with the names of the columns, and a line for each pair, in the order of the set. A column ``same`` of
0 and 1, if there is one, must agree with the set: it shows that the lines belong to the pairs.
"""

import csv
from collections.abc import Sequence

import numpy as np

from partial_fc.utils.text import plural, read_lines, some

SAME, EMPTY = "same", "(empty)"


def read_groups(path: str, columns: Sequence[str], issame: np.ndarray) -> dict[str, list[str]]:
    """Reads the groups of the P pairs from a CSV file: column -> P names. No ``columns`` are all but `SAME`.

    Raises:
        OSError: The file cannot be read.
        ValueError: It has no such column, another number of lines, or does not agree with the set.
    """
    try:
        reader = csv.DictReader((f"{line}\n" for line in read_lines(path)), restval="")
        rows, names = list(reader), list(reader.fieldnames or ())
    except csv.Error as error:
        raise ValueError(f"{path} is no CSV file: {error}") from None
    missing = [name for name in columns if name not in names]
    if missing:
        raise ValueError(f"{path} has no column {some(missing)}, but {some(names)}")
    if len(rows) != len(issame):
        raise ValueError(
            f"{path} has {plural(len(rows), 'line')} below its heading, but the set {plural(len(issame), 'pair')}: it "
            "needs a line for each pair, in the order of the set"
        )
    for number, (row, same) in enumerate(zip(rows, issame.tolist()), start=2):
        if SAME in names and row[SAME].strip() != str(int(same)):
            raise ValueError(
                f"{path}: line {number} has {SAME}={row[SAME]!r}, but the set {int(same)} for this pair: the lines "
                "must be in the order of the set"
            )
    wanted = columns or [name for name in names if name != SAME]
    return {name: [row[name].strip() or EMPTY for row in rows] for name in wanted}
