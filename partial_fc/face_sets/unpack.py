"""Unpack a face set into a folder per identity; the bytes of the images are not changed.

Folders bear the names of identities.txt where that lies beside the set, else the labels. Files bear the key of their
image, so that packing the tree again keeps the order.
"""

from __future__ import annotations

import argparse
import os

from partial_fc.face_records import FaceRecords
from partial_fc.face_sets.encoding import extension
from partial_fc.face_sets.names import folder_names, read_names
from partial_fc.face_sets.output import plural, progress, staged_folder
from partial_fc.face_sets.source import by_identity, open_set

HELP = "train.rec -> folder per identity"
EXAMPLE = "python -m partial_fc.face_sets unpack /train_tmp/mine faces/again"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `unpack`."""
    parser.add_argument("set", metavar="SET", help="folder of the set, or its train.rec")
    parser.add_argument("folder", metavar="FOLDER", help="is made, or must be empty")


def run(args: argparse.Namespace) -> int:
    """The command."""
    images, identities = unpack_set(args.set, args.folder)
    print(f"{args.folder}: {plural(images, 'image')} in {plural(identities, 'folder')}")
    return 0


def unpack_set(path: str, folder: str) -> tuple[int, int]:
    """Write the images of the set at `path` into `folder`; returns the numbers of images and of folders.

    Raises OSError or ValueError naming the file and the mend; nothing is left behind then.
    """
    records = open_set(path)
    try:
        names = folder_names(read_names(records.rec_path, records.num_identities), records.num_identities)
        with staged_folder(folder) as stage, progress(records.num_images, "image", "unpacking") as bar:
            identities = 0
            for label, positions in by_identity(records):
                os.mkdir(os.path.join(stage, names[label]))
                for position in positions:
                    write_image(records, position, os.path.join(stage, names[label]))
                    bar.update()
                identities += 1
        return records.num_images, identities
    finally:
        records.close()


def write_image(records: FaceRecords, position: int, folder: str) -> None:
    """One image, named by its key with zeros in front."""
    image, _ = records.read_image(position)
    last = int(records.keys([records.num_images - 1])[0])
    name = str(int(records.keys([position])[0])).zfill(len(str(last)))
    with open(os.path.join(folder, name + extension(image)), "wb") as file:
        file.write(image)
