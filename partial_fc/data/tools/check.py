"""Check a face set, even one that cannot be opened, and report every bad record with its key and offset.

Reads every record, decodes its image, and checks size and channels. Keys must be unique, offsets must ascend, the index
must cover the .rec to its last byte, the identities' ranges must be complete, every image must have the label of its
identity, and the property file must match. Exits with 0 if there are no problems, 1 if there are, 2 if the set does not
exist.
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
from .check_records import CHUNK, RANGES, ChunkResult, Context, Task, describe_gap, read_chunk
from .index_lines import IndexLines
from .source import decoded_size, rec_path_of

EXAMPLE = "/train_tmp/glint360k --workers 32"
SIZE_SAMPLES = 32  # images that determine the image size of the set
ADVICE = {
    INDEX: "the .idx and the .rec do not match: copy both again from their source",
    FILE: "the .rec is damaged or truncated: compare its size and checksum with the original and copy it again",
    IMAGE: "single images are bad: train with skip_bad_images=N, or remove them (unpack --skip-bad, then "
    "pack --skip-bad)",
    IDENTITY: "the identity records are wrong: copy the set again, or pack it again from its images",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("set", metavar="SET", help="folder of the set, or its train.rec")
    parser.add_argument("--fast", action="store_true", help="check the structure only, without decoding images")
    add_workers(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    check = SetCheck(rec_path_of(args.set), args.fast, args.workers)
    parts: Counter = Counter()
    for problem in check.problems():
        parts[problem.part] += 1
        tqdm.write(problem.text, file=sys.stdout)
    print(check.summary(parts))
    return 1 if parts else 0


class SetCheck:
    """One run of `check`, in memory of some 75 bytes per record.

    Args:
        rec_path: path of the train.rec.
        fast: do not decode images.
        workers: number of processes.

    Attributes:
        images, identities, records: their numbers, after all problems are read.
        is_known: `identities` is certain.

    Raises:
        OSError, ValueError: a file is missing or empty.
    """

    def __init__(self, rec_path: str, fast: bool = False, workers: int = 1):
        self.rec_path, self.idx_path = rec_path, index_path(rec_path)
        self.fast, self.workers = fast, workers
        self.size = require_file(self.rec_path, "the records")
        require_file(self.idx_path, "the index of the records")
        self.images = self.identities = self.records = 0
        self.is_known = False

    def problems(self) -> Iterator[Problem]:
        """Reads the set and yields its problems."""
        lines = IndexLines(self.idx_path)
        self.records = len(lines.keys)
        yield from check_index.bad_lines(lines, os.path.basename(self.idx_path))
        yield from check_index.invalid_offsets(lines, self.size)
        yield from check_index.repeated_keys(lines)
        yield from check_index.repeated_offsets(lines)
        yield from check_index.falling_offsets(lines, self.size)
        rows = np.flatnonzero(~check_index.invalid(lines, self.size))
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
            yield Problem(IDENTITY, f"property has {stated[0]} identities, the records have {self.identities}")

    def _property(self) -> Any:
        """Yields problems of the `property` file; returns its (C, H, W) or None."""
        try:
            return read_property(self.rec_path)
        except ValueError as error:
            yield Problem(IDENTITY, str(error))
            return None

    def _image_size(self, lines: IndexLines, rows: np.ndarray, stated: tuple | None) -> tuple:
        """Returns ((H, W) that images must have, problems): the most frequent size of a sample of images."""
        step = max(len(rows) // SIZE_SAMPLES, 1)
        sizes = Counter(filter(None, (self._size_at(int(lines.offsets[row])) for row in rows[::step].tolist())))
        if not sizes:
            return (None if stated is None else stated[1:]), []
        (height, width), _ = sizes.most_common(1)[0]
        if stated is None or stated[1:] == (height, width):
            return (height, width), []
        text = f"property has {stated[1]}x{stated[2]} pixels, the images have {height}x{width}"
        return (height, width), [Problem(IDENTITY, text)]

    def _size_at(self, offset: int) -> tuple | None:
        """Returns (H, W) of the image at the offset, None if there is none."""
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
        # None: images are not decoded. (1, 1): no image of the sample could be decoded, so that any size is wrong.
        context = Context(self.rec_path, None if self.fast else size or (1, 1))
        with progress(len(rows), "record", "checking") as bar:
            for task, result in ordered_map(partial(read_chunk, context), self._tasks(lines, rows), self.workers):
                columns.store(task, result)
                for place, what in result.problems:
                    part = IMAGE if result.kinds[place] else FILE
                    yield Problem(part, at(int(task.keys[place]), int(task.offsets[place]), what))
                for start, stop in result.gaps:
                    yield self._gap(start, stop)
                bar.update(len(task.rows))

    def _tasks(self, lines: IndexLines, rows: np.ndarray) -> Iterator[Task]:
        for begin in range(0, len(rows), CHUNK):
            part = rows[begin : begin + CHUNK]
            after = rows[begin + CHUNK : begin + CHUNK + 1]
            stop = int(lines.offsets[after[0]]) if len(after) else self.size
            yield Task(part, lines.keys[part], lines.offsets[part], stop)

    def _gap(self, start: int, stop: int) -> Problem:
        return Problem(INDEX, f"offset {start} to {stop}: {describe_gap(self.rec_path, start, stop)}")

    def summary(self, parts: Counter) -> str:
        """Returns the last line: what was checked, the number of problems, and what to do."""
        what = f"{self.rec_path}: {plural(self.records, 'record')}, {plural(self.images, 'image')}" + (
            f" of {plural(self.identities, 'identity', 'identities')}" if self.is_known else ""
        )
        depth = "structure only" if self.fast else "every image decoded"
        if not parts:
            return f"{what}; {depth}: no problems"
        # A damaged file or index causes problems of identities, too, and a wrong index those of labels.
        parts_shown = (FILE, INDEX) if parts[INDEX] else (FILE, IMAGE)
        causes = [part for part in parts_shown if parts[part]] or [IDENTITY]
        advice = "; ".join(ADVICE[part] for part in causes)
        return f"{what}; {depth}: {plural(sum(parts.values()), 'problem')}. What to do: {advice}"


class Columns:
    """What the records contain, by line of the index: 6 bytes per record."""

    def __init__(self, count: int):
        self.kinds = np.zeros(count, np.uint8)
        self.labels = np.full(count, np.nan, np.float32)
        self.other_id = np.zeros(count, bool)
        self.ranges: list[np.ndarray] = []

    def store(self, task: Task, result: ChunkResult) -> None:
        """Stores the result of a chunk."""
        self.kinds[task.rows] = result.kinds
        self.labels[task.rows] = result.labels
        self.other_id[task.rows] = result.other_id
        if result.ranges:
            self.ranges.append(np.array(result.ranges, RANGES))

    def by_key(self, lines: IndexLines) -> Records:
        """Returns the records in the order of the keys, each key once."""
        rows = np.argsort(lines.keys, kind="stable")
        keys = lines.keys[rows]
        if (keys[1:] == keys[:-1]).any():
            keys, rows = np.unique(lines.keys, return_index=True)
        ranges = np.concatenate([*self.ranges, np.empty(0, RANGES)])
        ranges = ranges[np.unique(ranges["key"], return_index=True)[1]]
        return Records(keys, lines.offsets[rows], self.kinds[rows], self.labels[rows], self.other_id[rows], ranges)
