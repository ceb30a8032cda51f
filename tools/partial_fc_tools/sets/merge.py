"""Merge face sets into one, without changing the bytes of images.

The labels of each set follow the labels of the sets before it, without gaps: identities without images are left out. A
person in two sets becomes two identities. identities.txt lists the origin of each label, as set/name.
"""

import argparse
import os
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import numpy as np

from partial_fc.data.face_records import FaceRecords, write_face_set
from partial_fc.data.names import check_names, names_of, write_names
from partial_fc.utils.cli import add_force
from partial_fc.utils.progress import progress
from partial_fc.utils.staging import staged_files
from partial_fc.utils.text import plural, say

from .pack import FILES
from .source import by_identity, image_size_of, open_set

EXAMPLE = "/train_tmp/both /train_tmp/ms1mv3 /train_tmp/mine"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("out", metavar="OUT", help="folder of the new set")
    parser.add_argument("first", metavar="SET", help="folder of a set, or its train.rec")
    parser.add_argument("others", metavar="SET", nargs="+", help="further sets")
    add_force(parser)


def run(args: argparse.Namespace) -> int:
    """Writes the set; returns the exit code. Nothing is written after an error."""
    with ExitStack() as stack:
        sets = [stack.enter_context(closing(open_set(path))) for path in (args.first, *args.others)]
        check_output(args.out, sets)
        sizes = [image_size_of(records) for records in sets]
        for records, (height, width) in zip(sets, sizes):
            if (height, width) != sizes[0]:
                raise ValueError(
                    f"{records.rec_path} has images of {height}x{width}, but {sets[0].rec_path} of "
                    f"{sizes[0][0]}x{sizes[0][1]}: unpack one and pack it with --resize --size"
                )
        names = []
        for prefix, records in zip(distinct_names(sets), sets):
            identities = names_of(records.rec_path, np.unique(records.runs.labels), records.num_identities)
            names += check_names(f"{prefix}/{name}" for name in identities)
        stage = stack.enter_context(staged_files(args.out, FILES, args.force))
        bar = stack.enter_context(progress(sum(records.num_images for records in sets), "image", "merging"))
        images, count = write_face_set(stage, merged(sets, bar), sizes[0])
        write_names(stage, names)
    empty = sum(records.num_identities for records in sets) - count
    dropped = f"; {plural(empty, 'identity', 'identities')} without images left out" if empty else ""
    say(f"{args.out}: {plural(images, 'image')} of {plural(count, 'identity', 'identities')}{dropped}")
    return 0


def check_output(out: str, sets: list[FaceRecords]) -> None:
    """Raises ValueError if the set `out` would replace one of the merged sets."""
    target = os.path.join(out, FILES[0])
    for records in sets:
        folder = os.path.dirname(os.path.abspath(records.rec_path))
        for source, written in ((folder, out), (records.rec_path, target)):
            if os.path.exists(written) and os.path.samefile(source, written):
                raise ValueError(f"{out} is one of the sets to merge, {records.rec_path}: name another folder for OUT")


def merged(sets: list[FaceRecords], bar: Any) -> Iterator[Iterator[bytes]]:
    """Yields the encoded images of each identity of each set, and updates the bar."""
    for records in sets:
        for _, positions in by_identity(records):
            read = list(positions)
            yield (records.read_image(position)[0] for position in read)
            bar.update(len(read))


def distinct_names(sets: list[FaceRecords]) -> list[str]:
    """Returns a unique name for each set: its folder or its .rec, with a number appended to a repeated name."""
    names: list[str] = []
    for records in sets:
        base = os.path.splitext(os.path.basename(records.rec_path))[0]
        if base == "train":
            base = os.path.basename(os.path.dirname(os.path.abspath(records.rec_path))) or "set"
        name, number = base, 1
        while name in names:
            number += 1
            name = f"{base}-{number}"
        names.append(name)
    return names
