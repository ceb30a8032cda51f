"""Check a face set, also one that is too damaged to be opened, and name every bad record with its key and offset.

Every record is read and its image decoded: size, channels. Keys must be unique, offsets ascend, the index cover the
.rec to its last byte, the identities' ranges add up, every image have the label of its identity, and the property file
agree. Ends with 0 if all is well, 1 if something is wrong, 2 if the set is not there.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from tqdm import tqdm

from partial_fc.data.face_records import index_path, read_property
from partial_fc.data.recordio.format import require_file, unpack
from partial_fc.data.recordio.scanner import BrokenRecordError, locate_record, read_payload
from partial_fc.utils.cli import add_workers
from partial_fc.utils.process_pool import ordered_map
from partial_fc.utils.progress import progress
from partial_fc.utils.text import plural

from . import check_index
from .check_index import FILE, IDENTITY, IMAGE, INDEX, Problem, at
from .check_ranges import Identities, Records
from .check_records import CHUNK, RANGES, Context, Task, look_at_chunk, look_at_gap
from .index_lines import IndexLines
from .source import decoded_size, rec_path_of

HELP = "read a set from end to end and name what is wrong, record by record"
EXAMPLE = "python -m partial_fc.data.tools check /train_tmp/glint360k --workers 32"
SIZE_SAMPLES = 32  # images looked at for the size that images of this set have
ADVICE = {
    INDEX: "the .idx and the .rec do not fit: copy both again from where they came",
    FILE: "the .rec is damaged or cut short: compare its size and checksum with the original's and copy it again",
    IMAGE: "single images are bad: train with skip_bad_images=N, or take them out (unpack --skip-bad, then "
    "pack --skip-bad)",
    IDENTITY: "the identity records are wrong: copy the set again, or pack it anew from its images",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `check`."""
    parser.add_argument("set", metavar="SET", help="folder of the set, or its train.rec")
    parser.add_argument("--fast", action="store_true", help="do not decode images: only the structure")
    add_workers(parser)


def run(args: argparse.Namespace) -> int:
    """The command."""
    check = SetCheck(rec_path_of(args.set), args.fast, args.workers)
    parts: Counter = Counter()
    for problem in check.problems():
        parts[problem.part] += 1
        tqdm.write(problem.text, file=sys.stdout)
    print(check.summary(parts))
    return 1 if parts else 0


class SetCheck:
    """One run of `check`: `problems` yields what is wrong while it reads the set, in memory of some 75 bytes a record.

    Raises OSError or ValueError if a file is missing or empty.
    """

    def __init__(self, rec_path: str, fast: bool = False, workers: int = 1):
        self.rec_path, self.idx_path = rec_path, index_path(rec_path)
        self.fast, self.workers = fast, workers
        self.size = require_file(self.rec_path, "the records")
        require_file(self.idx_path, "the index of the records")
        self.images = self.identities = self.records = 0
        self.is_known = False  # whether `identities` is sure

    def problems(self) -> Iterator[Problem]:
        """Everything that is wrong, in the order it is found."""
        lines = IndexLines(self.idx_path)
        self.records = len(lines.keys)
        yield from check_index.bad_lines(lines, os.path.basename(self.idx_path))
        yield from check_index.impossible_offsets(lines, self.size)
        yield from check_index.repeated_keys(lines)
        yield from check_index.repeated_offsets(lines)
        yield from check_index.falling_offsets(lines, self.size)
        rows = np.flatnonzero(~check_index.impossible(lines, self.size))
        rows = rows[np.argsort(lines.offsets[rows], kind="stable")]
        stated = yield from self._property()
        size, texts = self._image_size(lines, rows, stated)
        yield from texts
        columns = Columns(len(lines.keys))
        yield from self._read_all(lines, rows, size, columns)
        records = columns.by_key(lines)
        del lines, columns, rows  # a gigabyte where a set has 17 million images
        identities = Identities(records)
        yield from identities.problems
        self.images, self.identities, self.is_known = identities.images, identities.count, identities.is_known
        if stated is not None and self.is_known and stated[0] != self.identities:
            yield Problem(IDENTITY, f"property says {stated[0]} identities, the records {self.identities}")

    def _property(self) -> Any:
        """Yields what is wrong with `property`; returns its (C, H, W) or None."""
        try:
            return read_property(self.rec_path)
        except ValueError as error:
            yield Problem(IDENTITY, str(error))
            return None

    def _image_size(self, lines: IndexLines, rows: np.ndarray, stated: tuple | None) -> tuple:
        """((H, W) that images must have, problems): what most of some images have, as `property` should say."""
        step = max(len(rows) // SIZE_SAMPLES, 1)
        sizes = Counter(filter(None, (self._size_at(int(lines.offsets[row])) for row in rows[::step].tolist())))
        if not sizes:
            return (None if stated is None else stated[1:]), []
        (height, width), _ = sizes.most_common(1)[0]
        if stated is None or stated[1:] == (height, width):
            return (height, width), []
        text = f"property says {stated[1]}x{stated[2]} pixels, the images have {height}x{width}"
        return (height, width), [Problem(IDENTITY, text)]

    def _size_at(self, offset: int) -> tuple | None:
        """(H, W) of the image at the offset, None if there is none."""
        fd = os.open(self.rec_path, os.O_RDONLY)
        try:
            _, image = unpack(read_payload(fd, locate_record(fd, offset, self.size)))
        except (BrokenRecordError, ValueError, OSError):
            return None
        finally:
            os.close(fd)
        return decoded_size(image)

    def _read_all(self, lines: IndexLines, rows: np.ndarray, size: tuple | None, columns: Columns) -> Iterator[Problem]:
        """Reads the records in the order of the file; fills `columns`."""
        if len(rows) and lines.offsets[rows[0]] > 0:
            yield self._gap(0, int(lines.offsets[rows[0]]))
        # Without decoding nothing has to know the size; with no image that can be decoded any size will do.
        context = Context(self.rec_path, None if self.fast else size or (1, 1))
        with progress(len(rows), "record", "checking") as bar:
            for task, found in ordered_map(partial(look_at_chunk, context), self._tasks(lines, rows), self.workers):
                columns.take(task, found)
                for place, what in found.problems:
                    part = IMAGE if found.kinds[place] else FILE
                    yield Problem(part, at(int(task.keys[place]), int(task.offsets[place]), what))
                for start, stop in found.gaps:
                    yield self._gap(start, stop)
                bar.update(len(task.rows))

    def _tasks(self, lines: IndexLines, rows: np.ndarray) -> Iterator[Task]:
        for begin in range(0, len(rows), CHUNK):
            part = rows[begin : begin + CHUNK]
            after = rows[begin + CHUNK : begin + CHUNK + 1]
            stop = int(lines.offsets[after[0]]) if len(after) else self.size
            yield Task(part, lines.keys[part], lines.offsets[part], stop)

    def _gap(self, start: int, stop: int) -> Problem:
        return Problem(INDEX, f"offset {start} to {stop}: {look_at_gap(self.rec_path, start, stop)}")

    def summary(self, parts: Counter) -> str:
        """The last line: what was looked at, what came of it, and what to do."""
        what = f"{self.rec_path}: {plural(self.records, 'record')}, {plural(self.images, 'image')}" + (
            f" of {plural(self.identities, 'identity', 'identities')}" if self.is_known else ""
        )
        depth = "structure only" if self.fast else "every image decoded"
        if not parts:
            return f"{what}; {depth}: all is well"
        # A damaged file or index makes the identities look wrong too, and a wrong index the images' labels.
        told = (FILE, INDEX) if parts[INDEX] else (FILE, IMAGE)
        causes = [part for part in told if parts[part]] or [IDENTITY]
        advice = "; ".join(ADVICE[part] for part in causes)
        return f"{what}; {depth}: {plural(sum(parts.values()), 'problem')}. What to do: {advice}"


class Columns:
    """What was found, by line of the index: 6 bytes a record."""

    def __init__(self, count: int):
        self.kinds = np.zeros(count, np.uint8)
        self.labels = np.full(count, np.nan, np.float32)
        self.other_id = np.zeros(count, bool)
        self.ranges: list[np.ndarray] = []

    def take(self, task: Task, found: Any) -> None:
        """Keep a chunk's findings."""
        self.kinds[task.rows] = found.kinds
        self.labels[task.rows] = found.labels
        self.other_id[task.rows] = found.other_id
        if found.ranges:
            self.ranges.append(np.array(found.ranges, RANGES))

    def by_key(self, lines: IndexLines) -> Records:
        """The records in the order of the keys, each key once."""
        rows = np.argsort(lines.keys, kind="stable")
        keys = lines.keys[rows]
        if (keys[1:] == keys[:-1]).any():
            keys, rows = np.unique(lines.keys, return_index=True)
        ranges = np.concatenate([*self.ranges, np.empty(0, RANGES)])
        ranges = ranges[np.unique(ranges["key"], return_index=True)[1]]
        return Records(keys, lines.offsets[rows], self.kinds[rows], self.labels[rows], self.other_id[rows], ranges)
