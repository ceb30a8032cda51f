"""A folder per identity, read identity by identity, and its image files encoded by several processes.

Shapes: C identities.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from partial_fc.utils.decoder_messages import DecoderMessages
from partial_fc.utils.process_pool import in_chunks, ordered_map

from .encoding import ImageOptions, WrongSizeError, encode_for_set

IMAGE_ENDINGS = (
    ".jpg .jpeg .jpe .jp2 .png .webp .bmp .dib .tif .tiff .ppm .pgm .pbm .pnm .avif .sr .ras .hdr .exr"
).split()
CHUNK = 32  # files a worker is handed at once: some milliseconds of work


class Encoded(NamedTuple):
    """One file: its encoded image, or None and why; `how` as in encode_for_set; `resizable`: only its size is wrong."""

    image: bytes | None
    how: str
    resizable: bool


class Folder(NamedTuple):
    """What lies in an identity's folder: image files in sorted order, folders, and how many other files."""

    images: list[str]
    folders: list[str]
    others: int


def identity_folders(root: str) -> tuple[list[str], int]:
    """(sorted names of the C folders, number of other entries) of a tree. Raises OSError or ValueError if none."""
    if not os.path.isdir(root):
        raise FileNotFoundError(f"{root} is no folder: name one that holds a folder of images for each identity")
    with os.scandir(root) as entries:
        found = [(entry.name, entry.is_dir()) for entry in entries]
    names = sorted(name for name, is_folder in found if is_folder and not name.startswith("."))
    if not names:
        raise ValueError(f"{root} holds no folders: it must have one for each identity, with its images")
    return names, len(found) - len(names)


def list_folder(path: str) -> Folder:
    """The content of one identity's folder; hidden files count as others, whatever they are called."""
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
    """(path, Encoded) in the order of the paths, which are drawn as there is room."""
    for chunk, results in ordered_map(partial(encode_chunk, options), in_chunks(paths, CHUNK), workers):
        yield from zip(chunk, results)


def encode_chunk(options: ImageOptions, paths: list[str]) -> list[Encoded]:
    """What a worker does with some files."""
    with DecoderMessages() as messages:
        return [encode_file(options, path, messages) for path in paths]


def encode_file(options: ImageOptions, path: str, messages: DecoderMessages) -> Encoded:
    """One file, whatever is wrong with it."""
    messages.damage()  # what is left of a file before, which failed
    try:
        with open(path, "rb") as file:
            image, how = encode_for_set(file.read(), options)
        damage = messages.damage()
        return Encoded(image, how, False) if damage is None else Encoded(None, f"is damaged: {damage}", False)
    except WrongSizeError as error:
        return Encoded(None, str(error), True)
    except ValueError as error:
        return Encoded(None, str(error), False)
    except OSError as error:
        return Encoded(None, f"cannot be read ({error.strerror})", False)


def complaint(path: str, result: Encoded) -> ValueError:
    """The error for a file that gave no image."""
    if result.resizable:
        return ValueError(f"{path} {result.how}: align and crop it to that, or give --resize")
    return ValueError(f"{path} {result.how}: mend or remove it")
