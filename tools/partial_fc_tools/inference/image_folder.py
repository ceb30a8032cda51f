"""Reads aligned face images from files.

Shapes: N faces, H, W input size of the model.
"""

import os
from collections.abc import Iterator, Sequence

import numpy as np

from partial_fc.data.encoding import scaled
from partial_fc.data.folder import Folder, list_folder
from partial_fc.data.transforms import WrongSizeError
from partial_fc.utils.decoder_messages import DecoderMessages
from partial_fc.utils.regular_files import LARGEST_IMAGE, read_image_file, read_regular, require_links_inside
from partial_fc.utils.text import some


def face_names(root: str | os.PathLike) -> tuple[list[str], list[str]]:
    """Returns the image files in a folder and its subfolders, and the other files, see `list_folder`.

    Both lists are sorted; their paths are relative to the folder.

    Raises:
        NotADirectoryError: ``root`` is not a folder.
        ValueError: There are no images, or a name contains a line break.
        OutsideError: A link to a folder leads out of this folder.
    """
    root = os.fspath(root)
    if not os.path.isdir(root):
        raise NotADirectoryError(f"{root} is not a folder: give a folder of images")
    names: list[str] = []
    others: list[str] = []
    for folder, content in _folders_below(root):
        names += (os.path.join(folder, name) for name in content.images)
        others += (os.path.join(folder, name) for name in content.others)
    if not names:
        raise ValueError(f"{root} and its subfolders hold no images" + (f", only {some(others)}" if others else ""))
    for name in names:
        if "\n" in name or "\r" in name:
            raise ValueError(f"{os.path.join(root, name)!r}: the name contains a line break: rename the file")
    return sorted(names), sorted(others)


def read_face(path: str, size: tuple[int, int], scale: bool = False) -> np.ndarray:
    """Reads one image file: (H, W, 3) uint8 RGB.

    Images of another size are scaled if ``scale`` is set, otherwise refused.

    Raises:
        OSError: The file cannot be read.
        ValueError: The image is damaged or has another size. The message names the file.
    """
    with DecoderMessages() as messages:
        return _decode(path, read_regular(path, LARGEST_IMAGE), size, scale, messages)


def decode_face(data: bytes, size: tuple[int, int], scale: bool, messages: DecoderMessages) -> np.ndarray:
    """Decodes an image to (H, W, 3) uint8 RGB. Raises ValueError, or WrongSizeError for another size."""
    return messages.checked(lambda: scaled(data, size, scale))


def read_faces(
    root: str | os.PathLike, names: Sequence[str], size: tuple[int, int], scale: bool = False
) -> tuple[list[str], np.ndarray, list[str]]:
    """Reads the files ``names`` below ``root``; skips files that `read_face` would refuse.

    Returns:
        Names of the N usable files, their images (N, H, W, 3) uint8 RGB, and a message for each skipped file.
    """
    images, kept, skipped = [], [], []
    with DecoderMessages() as messages:
        for name in names:
            try:
                path = os.path.join(root, name)
                images.append(_decode(path, read_image_file(path, root), size, scale, messages))
                kept.append(name)
            except OSError as error:
                skipped.append(f"{os.path.join(root, name)} cannot be read ({error.strerror})")
            except ValueError as error:
                skipped.append(str(error))
    return kept, np.array(images, np.uint8).reshape(-1, *size, 3), skipped


def _folders_below(root: str) -> Iterator[tuple[str, Folder]]:
    """Yields root and the folders below it, each once; a folder is preferred to links to it."""
    seen: set[tuple[int, int]] = set()  # device and inode, as links may form a loop
    folders, links = [""], list[str]()
    while folders or links:
        folder = folders.pop() if folders else links.pop()
        status = os.stat(os.path.join(root, folder))
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        content = list_folder(os.path.join(root, folder))
        yield folder, content
        for name in content.folders:
            (links if name in content.links else folders).append(os.path.join(folder, name))
        require_links_inside([os.path.join(root, link) for link in links], root)


def _decode(path: str, data: bytes, size: tuple[int, int], scale: bool, messages: DecoderMessages) -> np.ndarray:
    try:
        return decode_face(data, size, scale, messages)
    except WrongSizeError as error:
        raise ValueError(f"{path} {error}: crop it to that size, or use --resize to scale it") from None
    except ValueError as error:
        raise ValueError(f"{path} {error}: replace or remove it") from None
