"""Pack a folder per identity, or a set in another form, into train.rec, train.idx, property and identities.txt.

Labels follow the sorted names of the folders, and images the sorted names of their files, so the same tree gives the
same bytes. In other forms, images are in the order of their labels, and labels without images are left out. JPEG images
of the right size are stored unchanged; other formats become JPEG (or PNG). Gray becomes three channels, alpha is
dropped, and EXIF orientations are applied. Images of another size are refused, or with --resize scaled without
cropping: align faces with `sets align` first. Hidden files are ignored, and so are files that are images neither by
extension nor by content.
"""

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np

from partial_fc.data import names as identity_names
from partial_fc.data.encoding import ENCODED, RESIZED, ImageOptions
from partial_fc.data.face_records import write_face_set
from partial_fc.data.folder import (
    Encoded,
    encode_files,
    encode_images,
    encoding_error,
    identity_folders,
    list_folder,
    no_images,
    others_text,
)
from partial_fc.data.sources.forms import FOLDER, form_of, is_record_set, open_images, set_path
from partial_fc.utils.cli import add_follow_links, add_force, add_format, add_workers, whole_number
from partial_fc.utils.progress import progress
from partial_fc.utils.staging import staged_files
from partial_fc.utils.text import amount, plural, say

from .source import by_identity

EXAMPLE = "faces/aligned /train_tmp/mine --workers 16"
FILES = ("train.rec", "train.idx", "property", identity_names.FILE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument(
        "set",
        metavar="SET",
        help="folder with a folder of images for each identity, or another form of set that a training's rec= takes: "
        "a train.rec, .tar or .parquet files, what save_to_disk has written, hf:NAME, or package.module:name",
    )
    parser.add_argument("out", metavar="OUT", help="folder of the new set")
    add_image_options(parser)
    parser.add_argument("--skip-bad", action="store_true", help="leave out damaged files and empty identities")
    add_follow_links(parser)
    add_workers(parser)
    add_force(parser)


def add_image_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options for encoding image files."""
    parser.add_argument("--size", type=whole_number(1), default=112, help="height and width in pixels (default: 112)")
    parser.add_argument("--resize", action="store_true", help="scale images of another size instead of refusing them")
    add_format(parser)


def image_options(args: argparse.Namespace) -> ImageOptions:
    """Returns the ImageOptions of parsed arguments."""
    return ImageOptions(args.size, args.resize, args.quality, args.format)


def run(args: argparse.Namespace) -> int:
    """Writes the set; returns the exit code. Nothing is written after an error."""
    options = image_options(args)
    path = set_path(args.set)
    is_tree = form_of(args.set) == FOLDER or (is_record_set(path) and not os.path.exists(path))
    reader = TreeReader if is_tree else SetReader
    tree = reader(args.set if is_tree else path, options, args.workers, args.skip_bad)
    with staged_files(args.out, FILES, args.force) as stage:
        with progress(len(tree.folders), "identity", "packing") as tree.bar:
            images, identities = write_face_set(stage, tree.read(), (options.size, options.size))
        if images == 0:
            raise ValueError(f"{args.set} contains no usable image")
        identity_names.write_names(stage, tree.names)
    for line in tree.left_out:
        say(f"left out: {line}", sys.stderr)
    size = os.path.getsize(os.path.join(args.out, "train.rec"))
    empty = f", {plural(tree.empty, 'identity', 'identities')} left out as empty" if tree.empty else ""
    say(
        f"{args.out}: {plural(images, 'image')} of {plural(identities, 'identity', 'identities')}, "
        f"{amount(size)}; {tree.done[RESIZED]:,} resized, {tree.done[ENCODED]:,} encoded, "
        f"{len(tree.left_out) - tree.empty:,} left out as bad{empty}, {others_text(tree.others)}"
    )
    return 0


class TreeReader:
    """Reads the images of a tree by identity.

    Attributes, after reading:
        names: names of the identities that have images.
        done: number of images by KEPT, ENCODED and RESIZED.
        left_out: messages about files and identities that were left out.
        empty: number of identities in `left_out`.
        others: ignored files, relative to the tree.
    """

    def __init__(self, root: str, options: ImageOptions, workers: int, skip_bad: bool):
        self.root, self.options, self.workers, self.skip_bad = root, options, workers, skip_bad
        self.folders, self.others = identity_folders(root)
        identity_names.check_names(self.folders)
        self.names: list[str] = []
        self.empty = 0
        self.done: Counter = Counter()
        self.left_out: list[str] = []
        self.bar: Any = None

    def read(self) -> Iterator[Iterator[bytes]]:
        """Yields the images of each identity that has any."""
        for name, images in groupby(self._images(), key=lambda named: named[0]):
            self.names.append(name)
            yield (image for _, image in images)
        # Empty identities are known only now, as all files of an identity may be bad.
        empty = sorted(set(self.folders) - set(self.names))
        self.empty = len(empty)
        self.left_out += [f"{os.path.join(self.root, name)} (no usable image)" for name in empty]

    def _images(self) -> Iterator[tuple[str, bytes]]:
        """Yields (identity, encoded image) of all usable files."""
        for name, path, result in self._encoded():
            if result.image is not None:
                self.done[result.how] += 1
                yield name, result.image
            elif result.resizable:
                raise encoding_error(path, result)
            else:
                self._bad(f"{path} {result.how}", "fix or remove it")

    def _encoded(self) -> Iterator[tuple[str, str, Encoded]]:
        """Yields (identity, path, result) of all images."""
        for path, result in encode_files(self.root, self._paths(), self.options, self.workers):
            yield os.path.basename(os.path.dirname(path)), path, result

    def _paths(self) -> Iterator[str]:
        for name in self.folders:
            folder = os.path.join(self.root, name)
            content = list_folder(folder)
            self.others += (os.path.join(name, file) for file in content.others)
            for inner in content.folders:
                self._bad(f"{os.path.join(folder, inner)} is a folder in an identity's folder", "move its images up")
            if not content.images and not self.skip_bad:
                raise ValueError(f"{no_images(folder, content.others)}, or use --skip-bad")
            yield from (os.path.join(folder, file) for file in content.images)
            self.bar.update()

    def _bad(self, what: str, fix: str) -> None:
        if not self.skip_bad:
            raise ValueError(f"{what}: {fix}, or use --skip-bad")
        self.left_out.append(what)


class SetReader(TreeReader):
    """Reads the images of a set in another form by label. See TreeReader; identities have names, or else labels."""

    def __init__(self, path: str, options: ImageOptions, workers: int, skip_bad: bool):
        self.root, self.options, self.workers, self.skip_bad = path, options, workers, skip_bad
        self.records = open_images(path)
        self.others, self.done, self.empty = list(self.records.left_out), Counter(), 0
        self.names, self.left_out = [], []
        labels = self.records.runs.labels
        if labels.ndim > 1:
            raise ValueError(f"{path} has several labels for an image, but a face set has one: use it as rec=")
        present, identities = np.unique(labels), self.records.num_identities
        names = (identity_names.read_names(path, identities) if is_record_set(path) else None) or self.records.names
        self.folders = [names[label] for label in present.tolist()] if names else []
        if len(set(self.folders)) < len(present):  # or no names
            self.folders = [identity_names.padded(label, identities) for label in present.tolist()]
        self._name_of = dict(zip(present.tolist(), self.folders))

    def _encoded(self) -> Iterator[tuple[str, str, Encoded]]:
        for (name, where, _), result in encode_images(itemgetter(2), self._stored(), self.options, self.workers):
            yield name, where, result

    def _stored(self) -> Iterator[tuple[str, str, bytes | np.ndarray]]:
        """Yields (identity, description, image as stored) of all images by label."""
        for label, positions in by_identity(self.records):
            for position in positions:
                where: str = self.records.describe(position)
                try:
                    yield self._name_of[label], where, self.records.read(position, label)
                except ValueError as error:
                    self._bad(f"{where} cannot be read ({error})", "fix or remove it")
            self.bar.update()
