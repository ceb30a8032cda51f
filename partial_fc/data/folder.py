"""Reads a folder per identity; several processes encode the image files.

Shapes: C identities.
"""

import os
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from partial_fc.utils.decoder_messages import DecoderMessages
from partial_fc.utils.process_pool import in_chunks, ordered_map
from partial_fc.utils.staging import MARKER

from .encoding import ImageOptions, WrongSizeError, encode_for_set

IMAGE_ENDINGS = (
    ".jpg .jpeg .jpe .jp2 .png .webp .bmp .dib .tif .tiff .ppm .pgm .pbm .pnm .avif .sr .ras .hdr .exr"
).split()
CHUNK = 32  # files of a task: some milliseconds of work


class Encoded(NamedTuple):
    """An encoded file."""

    image: bytes | None  # the encoded image, None if the file is unusable
    how: str  # KEPT, ENCODED or RESIZED, or why the file is unusable
    resizable: bool  # only the size of the image is wrong


class Folder(NamedTuple):
    """The content of an identity's folder: sorted image files, sorted folders, and the number of other files."""

    images: list[str]
    folders: list[str]
    others: int


def identity_folders(root: str) -> tuple[list[str], int]:
    """Returns (sorted names of the C folders, number of other entries). Raises OSError or ValueError."""
    if not os.path.isdir(root):
        raise FileNotFoundError(f"{root} is not a folder, expected one with a folder of images for each identity")
    with os.scandir(root) as entries:
        listed = [(entry.name, entry.is_dir()) for entry in entries if entry.name != MARKER]
    names = sorted(name for name, is_folder in listed if is_folder and not name.startswith("."))
    if not names:
        raise ValueError(f"{root} contains no folders, expected one for each identity, with its images")
    return names, len(listed) - len(names)


def list_folder(path: str) -> Folder:
    """Lists one identity's folder; hidden files count as others."""
    images, folders, others = [], [], 0
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                others += 1
            elif entry.is_dir():
                folders.append(entry.name)
            elif os.path.splitext(entry.name)[1].lower() in IMAGE_ENDINGS:
                images.append(entry.name)
            else:
                others += 1
    return Folder(sorted(images), sorted(folders), others)


def encode_files(paths: Iterator[str], options: ImageOptions, workers: int) -> Iterator[tuple[str, Encoded]]:
    """Yields (path, Encoded) in the order of the paths, which are consumed as workers become free."""
    for chunk, results in ordered_map(partial(encode_chunk, options), in_chunks(paths, CHUNK), workers):
        yield from zip(chunk, results)


def encode_chunk(options: ImageOptions, paths: list[str]) -> list[Encoded]:
    """Encodes some files, in a worker."""
    with DecoderMessages() as messages:
        return [encode_file(options, path, messages) for path in paths]


def encode_file(options: ImageOptions, path: str, messages: DecoderMessages) -> Encoded:
    """Encodes one file; errors are part of the result."""
    try:
        with open(path, "rb") as file:
            data = file.read()
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
