"""Unpack a face set into a folder per identity; the bytes of the images are not changed.

Folders bear the names of identities.txt where that lies beside the set, else the labels. Files bear the key of their
image, so that packing the tree again keeps the order within each identity; labels then follow the folders' names.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from typing import NamedTuple

from partial_fc.data.encoding import extension
from partial_fc.data.face_records import FaceRecords
from partial_fc.utils.progress import progress
from partial_fc.utils.staging import staged_folder
from partial_fc.utils.text import plural

from .names import folder_names, read_names
from .source import by_identity, open_set

HELP = "train.rec -> folder per identity"
EXAMPLE = "python -m partial_fc.data.tools unpack /train_tmp/mine faces/again"


class Unpacked(NamedTuple):
    """What came of it: images and folders written, and a line for every image that was left out."""

    images: int
    identities: int
    left_out: list[str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `unpack`."""
    parser.add_argument("set", metavar="SET", help="folder of the set, or its train.rec")
    parser.add_argument("folder", metavar="FOLDER", help="is made, or must be empty")
    parser.add_argument(
        "--skip-bad", action="store_true", help="leave out records that hold no image of a known format"
    )


def run(args: argparse.Namespace) -> int:
    """The command."""
    images, identities, left_out = unpack_set(args.set, args.folder, args.skip_bad)
    for line in left_out:
        print(f"left out: {line}", file=sys.stderr)
    bad = f"; {len(left_out):,} left out as bad" if left_out else ""
    print(f"{args.folder}: {plural(images, 'image')} in {plural(identities, 'folder')}{bad}")
    return 0


def unpack_set(path: str, folder: str, skip_bad: bool = False) -> Unpacked:
    """Write the images of the set at `path` into `folder`. With `skip_bad` what cannot be read is left out.

    Images are not decoded: `pack` does that.

    Raises OSError or ValueError naming the file and the mend; nothing is left behind then.
    """
    records = open_set(path)
    try:
        names = folder_names(read_names(records.rec_path, records.num_identities), records.num_identities)
        width = len(str(records.keys([records.num_images - 1])[0]))
        left_out: list[str] = []
        images = identities = 0
        with staged_folder(folder) as stage, progress(records.num_images, "image", "unpacking") as bar:
            for label, positions in by_identity(records):
                inner, written = os.path.join(stage, names[label]), 0
                os.mkdir(inner)
                for position, image in readable(records, positions, left_out if skip_bad else None):
                    write_image(image, os.path.join(inner, str(records.keys([position])[0]).zfill(width)))
                    written += 1
                    bar.update()
                if not written:  # `pack` would refuse it
                    os.rmdir(inner)
                images, identities = images + written, identities + bool(written)
        return Unpacked(images, identities, left_out)
    finally:
        records.close()


def readable(records: FaceRecords, positions: Iterator[int], left_out: list[str] | None) -> Iterator[tuple[int, bytes]]:
    """(position, encoded image) of those that can be read; lines for others go to `left_out`, or they are raised."""
    for position in positions:
        try:
            yield position, read_known(records, position)
        except (ValueError, OSError) as error:
            if left_out is None:
                kind = OSError if isinstance(error, OSError) else ValueError
                raise kind(f"{error}; or leave such out with --skip-bad") from None
            left_out.append(str(error))


def read_known(records: FaceRecords, position: int) -> bytes:
    """The image, of a format that has an ending: `pack` would pass over a file without."""
    image, _ = records.read_image(position)
    if not extension(image):
        raise ValueError(f"{records.describe(position)} has an unknown format (it starts with {image[:8]!r})")
    return image


def write_image(image: bytes, stem: str) -> None:
    """One file, its ending as its content is."""
    with open(stem + extension(image), "wb") as file:
        file.write(image)
