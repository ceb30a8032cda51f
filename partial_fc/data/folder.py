"""Folders of images, one per identity; several processes encode the images.

Shapes: C identities.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np

from partial_fc.utils.decoder_messages import DecoderMessages
from partial_fc.utils.process_pool import in_chunks, ordered_map
from partial_fc.utils.regular_files import open_regular, read_image_file, require_links_inside
from partial_fc.utils.text import plural, some

from .encoding import ImageOptions, encode_for_set
from .image_formats import HEADER, extension
from .transforms import WrongSizeError

IMAGE_ENDINGS = (
    ".jpg .jpeg .jpe .jfif .jp2 .png .webp .bmp .dib .tif .tiff .gif .ppm .pgm .pbm .pnm .avif .sr .ras .hdr .exr"
).split()
Item = TypeVar("Item")
CHUNK = 32  # files per task of a process: some milliseconds of work


class Encoded(NamedTuple):
    """The result of encoding a file."""

    image: bytes | None  # the encoded image, None if the file is unusable
    how: str  # KEPT, ENCODED or RESIZED, or the reason why the file is unusable
    resizable: bool  # only the size of the image is wrong


class Folder(NamedTuple):
    """The sorted names of image files, folders and other files in a folder, without hidden files."""

    images: list[str]
    folders: list[str]
    others: list[str]
    links: frozenset[str]  # the images and folders that are symbolic links


def identity_folders(root: str) -> tuple[list[str], list[str]]:
    """Returns the sorted names of the C folders and of the files next to them, without hidden ones.

    Raises:
        OSError, ValueError: there are no folders, one is a link out of `root`, or two are links to the same folder.
    """
    if not os.path.isdir(root):
        raise FileNotFoundError(f"{root} is not a folder, expected one with a folder of images for each identity")
    content = list_folder(root)
    linked = [name for name in content.folders if name in content.links]
    require_links_inside([os.path.join(root, name) for name in linked], root)
    if linked:  # otherwise many links to one folder of many images would make a huge set
        name_of_target: dict[str, str] = {}
        for name in content.folders:
            if (other := name_of_target.setdefault(os.path.realpath(os.path.join(root, name)), name)) != name:
                raise ValueError(f"{os.path.join(root, name)} and {other} are links to one folder: remove one")
    if not content.folders:
        raise ValueError(f"{root} contains no folders, expected one for each identity, with its images")
    return content.folders, sorted(content.images + content.others)


def list_folder(path: str) -> Folder:
    """Lists a folder. Images are recognized by the ending of their names, or by their content, such as x.JPG_1."""
    images: list[str] = []
    folders: list[str] = []
    others: list[str] = []
    links: list[str] = []
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                kind = folders
            else:
                is_image = os.path.splitext(entry.name)[1].lower() in IMAGE_ENDINGS or _has_image_content(entry)
                kind = images if is_image else others
            kind.append(entry.name)
            if kind is not others and entry.is_symlink():
                links.append(entry.name)
    return Folder(sorted(images), sorted(folders), sorted(others), frozenset(links))


def others_text(paths: Sequence[str]) -> str:
    """Counts and names files that are not images: "2 other files ignored: a/x.mov, a/y.txt"."""
    return plural(len(paths), "other file") + " ignored" + (f": {some(paths)}" if paths else "")


def no_images(folder: str, others: Sequence[str]) -> ValueError:
    """Returns the error for an identity's folder without images."""
    if others:
        return ValueError(f"{folder} contains no images that can be read, only {some(others)}: convert or remove them")
    return ValueError(f"{folder} contains no images: remove it")


def _has_image_content(entry: os.DirEntry) -> bool:
    """Whether a regular, readable file begins like an image."""
    try:
        with open_regular(entry.path) as file:
            return bool(extension(file.read(HEADER)))
    except OSError:
        return False


def encode_files(root: str, paths: Iterator[str], options: ImageOptions, workers: int) -> Iterator[tuple[str, Encoded]]:
    """Yields (path, Encoded) of files in the folder `root`, in the order of the paths; worker processes encode them."""
    return encode_images(partial(read_image_file, root=root), paths, options, workers)


def encode_images(
    read: Callable[[Item], bytes | np.ndarray], items: Iterator[Item], options: ImageOptions, workers: int
) -> Iterator[tuple[Item, Encoded]]:
    """Yields (item, Encoded) in order; worker processes call `read`, which returns a file's content or pixels."""
    for chunk, results in ordered_map(partial(_encode_chunk, read, options), in_chunks(items, CHUNK), workers):
        yield from zip(chunk, results)


def _encode_chunk(
    read: Callable[[Item], bytes | np.ndarray], options: ImageOptions, items: list[Item]
) -> list[Encoded]:
    with DecoderMessages() as messages:
        return [_encode_one(read, options, item, messages) for item in items]


def _encode_one(
    read: Callable[[Item], bytes | np.ndarray], options: ImageOptions, item: Item, messages: DecoderMessages
) -> Encoded:
    try:
        data = read(item)
        return Encoded(*messages.checked(lambda: encode_for_set(data, options)), False)
    except ValueError as error:
        return Encoded(None, str(error), isinstance(error, WrongSizeError))
    except OSError as error:
        return Encoded(None, f"cannot be read ({error.strerror})", False)


def encoding_error(path: str, result: Encoded) -> ValueError:
    """Returns the error for an unusable file."""
    if result.resizable:
        return ValueError(f"{path} {result.how}: align it with partial-fc sets align, or use --resize")
    return ValueError(f"{path} {result.how}: fix or remove it")
