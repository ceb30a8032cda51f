"""Check a face set, even one that cannot be opened, and report every bad record with its key and offset.

Reads every record, decodes its image, and checks size and channels. Keys must be unique, offsets must ascend, the index
must cover the .rec to its last byte, the identities' ranges must be complete (the first wrong one is reported), every
image must have the label of its identity, and the property file must match. The exit code is 0 without problems, 1 with
problems, and 2 if the set does not exist.
"""

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial

import numpy as np
from tqdm import tqdm

from partial_fc.data.face_records import FaceRecords, index_path, read_property
from partial_fc.data.recordio.format import require_file, unpack
from partial_fc.data.recordio.scanner import locate_record, read_payload
from partial_fc.utils.cli import add_workers
from partial_fc.utils.process_pool import ordered_map
from partial_fc.utils.progress import progress
from partial_fc.utils.text import plural, printable_lines, say

from .check_index import FILE, IDENTITY, IMAGE, INDEX, IndexLines, Problem
from .check_records import CHUNK, UNKNOWN, Chunk, gap_problem, read_chunk
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
        tqdm.write(printable_lines(problem.text), file=sys.stdout)
    say(check.summary(parts))
    return 1 if parts else 0


class SetCheck:
    """A run of `check`. It uses about 50 bytes of memory per record.

    Args:
        rec_path: path of the train.rec.
        fast: do not decode images.
        workers: number of processes.

    Attributes:
        records: number of records, after all problems are read.
        set: the set, if it can be opened.

    Raises:
        OSError, ValueError: a file is missing or empty.
    """

    def __init__(self, rec_path: str, fast: bool = False, workers: int = 1):
        self.rec_path, self.idx_path = rec_path, index_path(rec_path)
        self.fast, self.workers = fast, workers
        self.size = require_file(self.rec_path, "the records")
        require_file(self.idx_path, "the index of the records")
        self.records = 0
        self.face_records: FaceRecords | None = None

    def problems(self) -> Iterator[Problem]:
        """Reads the set and yields its problems."""
        lines = IndexLines(self.idx_path)
        self.records = len(lines.keys)
        structural = list(lines.problems(os.path.basename(self.idx_path), self.size))
        rows = np.flatnonzero(~lines.invalid(self.size))
        rows = rows[np.argsort(lines.offsets[rows], kind="stable")]
        stated = None
        try:
            stated = read_property(self.rec_path)
        except ValueError as refusal:
            structural.append(Problem(IDENTITY, str(refusal)))
        image_size = self._sampled_size(lines.offsets[rows])
        if stated is not None and image_size is not None and image_size != stated[1:]:
            text = f"property has {stated[1]}x{stated[2]} pixels, the images have {image_size[0]}x{image_size[1]}"
            structural.append(Problem(IDENTITY, text))
        yield from structural
        labels, error = np.full(len(lines.keys), UNKNOWN), ""
        try:
            self.face_records = FaceRecords(self.rec_path)
            labels = self.face_records.labels_of_keys(lines.keys, UNKNOWN)
        except (ValueError, KeyError, OSError) as refusal:
            error = refusal.args[0] if isinstance(refusal, KeyError) else str(refusal)
        # A damaged file or index explains why the set cannot be opened.
        explained = any(problem.part in (FILE, INDEX) or problem.text == error for problem in structural)
        for problem in self._record_problems(lines, rows, labels, image_size or (stated and stated[1:])):
            explained |= problem.part in (FILE, INDEX)
            yield problem
        if error and not explained:
            yield Problem(IDENTITY, error)
        if self.face_records is not None and stated is not None and stated[0] != self.face_records.num_identities:
            yield Problem(
                IDENTITY, f"property has {stated[0]} identities, the records have {self.face_records.num_identities}"
            )

    def _sampled_size(self, offsets: np.ndarray) -> tuple | None:
        """Returns the most frequent (H, W) of some images; None if none of them can be decoded."""
        sizes: Counter = Counter()
        with open(self.rec_path, "rb") as file:
            for offset in offsets[:: max(len(offsets) // SIZE_SAMPLES, 1)].tolist():
                try:
                    record = read_payload(file.fileno(), locate_record(file.fileno(), offset, self.size))
                    sizes[decoded_size(unpack(record)[1])] += 1
                except (ValueError, OSError):
                    continue
        del sizes[None]
        return sizes.most_common(1)[0][0] if sizes else None

    def _record_problems(
        self, lines: IndexLines, rows: np.ndarray, labels: np.ndarray, image_size: tuple | None
    ) -> Iterator[Problem]:
        """Reads the records of the lines `rows`, in the order of the file; `labels` (K,) belong to all lines."""
        if len(rows) and lines.offsets[rows[0]] > 0:
            with open(self.rec_path, "rb") as file:
                yield gap_problem(file.fileno(), 0, int(lines.offsets[rows[0]]))
        # None: images are not decoded. (1, 1): the image size is unknown, so that every image is reported.
        read = partial(read_chunk, self.rec_path, None if self.fast else image_size or (1, 1))
        stops = np.append(lines.offsets[rows[CHUNK::CHUNK]], self.size).tolist()
        parts = (rows[begin : begin + CHUNK] for begin in range(0, len(rows), CHUNK))
        chunks = (Chunk(lines.keys[part], lines.offsets[part], labels[part], stop) for part, stop in zip(parts, stops))
        with progress(len(rows), "record", "checking") as bar:
            for chunk, problems in ordered_map(read, chunks, self.workers):
                yield from problems
                bar.update(len(chunk.keys))

    def summary(self, parts: Counter) -> str:
        """Returns the last line of the output: what was checked, the number of problems, and advice."""
        text = f"{self.rec_path}: {plural(self.records, 'record')}"
        if self.face_records is not None:
            identities = plural(self.face_records.num_identities, "identity", "identities")
            text += f", {plural(self.face_records.num_images, 'image')} of {identities}"
        text += f"; {'structure only' if self.fast else 'every image decoded'}: "
        if not parts:
            return text + "no problems"
        # A damaged file or index causes problems of identities, too, and a wrong index causes wrong labels.
        causes = [part for part in ((FILE, INDEX) if parts[INDEX] else (FILE, IMAGE)) if parts[part]] or [IDENTITY]
        advice = "; ".join(ADVICE[part] for part in causes)
        return f"{text}{plural(sum(parts.values()), 'problem')}. What to do: {advice}"
