"""Unpack a face set into a folder per identity, without changing the bytes of images.

Folders are named by identities.txt, or by label without that file. Files are named by the keys of the images, so
packing the tree again keeps the order within each identity; labels then follow the names of the folders.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import closing

import numpy as np

from partial_fc.data.face_records import FaceRecords
from partial_fc.data.image_formats import extension
from partial_fc.data.names import folder_names, names_of, padded
from partial_fc.utils.progress import progress
from partial_fc.utils.staging import staged_folder
from partial_fc.utils.text import plural, say

from .source import by_identity, open_set

EXAMPLE = "/train_tmp/mine faces/again"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("set", metavar="SET", help="folder of the set, or its train.rec")
    parser.add_argument("folder", metavar="FOLDER", help="the new folder; must be missing or empty")
    parser.add_argument("--skip-bad", action="store_true", help="leave out records without an image of a known format")


def run(args: argparse.Namespace) -> int:
    """Writes the images without decoding them; returns the exit code. Nothing is written after an error."""
    left_out: list[str] = []
    images = identities = 0
    with closing(open_set(args.set)) as records:
        labels, count = np.unique(records.runs.labels), records.num_identities
        fallbacks = [padded(label, count) for label in labels.tolist()]
        names = dict(zip(labels.tolist(), folder_names(names_of(records.rec_path, labels, count), fallbacks)))
        width = len(str(records.keys([records.num_images - 1])[0]))
        with staged_folder(args.folder) as stage, progress(records.num_images, "image", "unpacking") as bar:
            for label, positions in by_identity(records):
                folder, before = os.path.join(stage, names[label]), images
                os.mkdir(folder)
                for position, image in readable(records, positions, left_out if args.skip_bad else None):
                    name = str(records.keys([position])[0]).zfill(width) + extension(image)
                    with open(os.path.join(folder, name), "wb") as file:
                        file.write(image)
                    images += 1
                    bar.update()
                if images == before:  # `pack` would refuse an empty folder
                    os.rmdir(folder)
                identities += images > before
    for line in left_out:
        say(f"left out: {line}", sys.stderr)
    bad = f"; {len(left_out):,} left out as bad" if left_out else ""
    say(f"{args.folder}: {plural(images, 'image')} in {plural(identities, 'folder')}{bad}")
    return 0


def readable(records: FaceRecords, positions: Iterator[int], left_out: list[str] | None) -> Iterator[tuple[int, bytes]]:
    """Yields (position, encoded image); adds errors of bad images to `left_out`, or raises them if it is None."""
    for position in positions:
        try:
            image, _ = records.read_image(position)
            if not extension(image):  # `pack` would ignore a file without extension
                raise ValueError(f"{records.describe(position)} has an unknown format (it starts with {image[:8]!r})")
            yield position, image
        except (ValueError, OSError) as error:
            if left_out is None:
                kind = OSError if isinstance(error, OSError) else ValueError
                raise kind(f"{error}; or leave it out with --skip-bad") from None
            left_out.append(str(error))
