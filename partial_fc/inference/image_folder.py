"""Aligned face images in files, as a face model takes them.

Shapes: N faces, H, W image size of the model.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from partial_fc.data.encoding import check_whole, decode_bgr, resize
from partial_fc.data.folder import list_folder
from partial_fc.utils.decoder_messages import DecoderMessages


class Faces(NamedTuple):
    """`images` (N, H, W, 3) uint8 RGB of the files `names`; `skipped`: what is wrong with each of the others."""

    names: list[str]
    images: np.ndarray
    skipped: list[str]


def face_names(root: str | os.PathLike) -> list[str]:
    """The image files in a folder and all folders below, sorted, relative to it; hidden ones do not count.

    Raises:
        OSError, ValueError: it is no folder, holds no images, or one whose name would be two lines of a list.
    """
    root = os.fspath(root)
    if not os.path.isdir(root):
        raise NotADirectoryError(f"{root} is no folder: name one that holds aligned face images")
    names = sorted(_names_below(root, "", []))
    if not names:
        raise ValueError(f"{root} holds no images, and no folder below it does")
    for name in names:
        if any(sign in name for sign in "\n\r"):
            raise ValueError(f"{os.path.join(root, name)!r}: a name must not hold line ends: rename the file")
    return names


def read_face(path: str, size: tuple[int, int], scale: bool = False) -> np.ndarray:
    """(H, W, 3) uint8 RGB of one image file, upright; grey becomes three equal channels, alpha is dropped.

    Args:
        path: of a JPEG, PNG, WebP or what else OpenCV reads.
        size: (H, W) that the model takes.
        scale: images of another size are scaled, not refused.

    Raises:
        OSError, ValueError: the file cannot be read, is damaged, or has another size; names it.
    """
    with DecoderMessages() as messages:
        return _decode(path, size, scale, messages)


def read_faces(root: str | os.PathLike, names: Sequence[str], size: tuple[int, int], scale: bool = False) -> Faces:
    """The faces of some files; those that read_face would refuse are skipped."""
    images, kept, skipped = [], [], []
    with DecoderMessages() as messages:
        for name in names:
            messages.damage()  # what is left of a file before, which failed
            try:
                images.append(_decode(os.path.join(root, name), size, scale, messages))
                kept.append(name)
            except OSError as error:
                skipped.append(f"{os.path.join(root, name)} cannot be read ({error.strerror})")
            except ValueError as error:
                skipped.append(str(error))
    return Faces(kept, np.stack(images) if images else np.empty((0, *size, 3), np.uint8), skipped)


def _names_below(root: str, folder: str, above: list[str]) -> Iterator[str]:
    """Image files below root/folder; `above`: the real folders on the way, where a link would lead back for ever."""
    here = os.path.realpath(os.path.join(root, folder))
    if here in above:
        return
    content = list_folder(os.path.join(root, folder))
    for name in content.images:
        yield os.path.join(folder, name)
    for name in content.folders:
        yield from _names_below(root, os.path.join(folder, name), [*above, here])


def _decode(path: str, size: tuple[int, int], scale: bool, messages: DecoderMessages) -> np.ndarray:
    with open(path, "rb") as file:
        data = file.read()
    try:
        check_whole(data)
        image = decode_bgr(data)
    except ValueError as error:
        raise ValueError(f"{path} {error}: mend or remove it") from None
    damage = messages.damage()
    if damage is not None:
        raise ValueError(f"{path} is damaged: {damage}: mend or remove it")
    if image.shape[:2] != size:
        if not scale:
            raise ValueError(
                f"{path} has {image.shape[0]}x{image.shape[1]} pixels instead of {size[0]}x{size[1]}: give an aligned "
                "crop of that size, or --resize to scale it"
            )
        image = resize(image, size)
    return np.ascontiguousarray(image[:, :, ::-1])
