"""Finds and crops the faces of a photo, in worker processes.

Shapes: H, W size of a photo.
"""

import math
import os
from collections.abc import Iterator
from functools import cache, partial
from typing import NamedTuple

import cv2
import numpy as np
from PIL import Image

from partial_fc.data.encoding import ImageOptions, encode
from partial_fc.data.image_formats import header
from partial_fc.data.transforms import decode_any_size
from partial_fc.utils.decoder_messages import DecoderMessages
from partial_fc.utils.process_pool import in_chunks, ordered_map
from partial_fc.utils.regular_files import read_image_file

from .alignment import align, similarities
from .detection import Detector, Face, open_detector

CHUNK = 2  # photos of a task, half a second of work: after Ctrl-C, workers finish the tasks that they have
ALIGNED, NO_FACE, DAMAGED, TOO_LARGE, FAILED = "aligned", "no face", "damaged", "too large", "detector failed"
detector_of_process = cache(open_detector)
Image.MAX_IMAGE_PIXELS = None  # Pillow's own limit may be below max_pixels, which is checked instead


class PhotoOptions(NamedTuple):
    """How photos become faces; see the options of `sets align`."""

    detector: str  # name for `open_detector`
    which: str  # "largest", "central" or "all"
    min_score: float  # lowest score of a face
    detect_side: int  # longer side in pixels of the image in which faces are detected
    max_pixels: int  # largest photo
    format: ImageOptions  # encoding of the faces


class AlignedPhoto(NamedTuple):
    """The outcome of a photo."""

    outcome: str  # ALIGNED, NO_FACE, DAMAGED, TOO_LARGE or FAILED
    reason: str = ""  # for DAMAGED, TOO_LARGE and FAILED
    turned: bool = False  # whether its EXIF orientation turned the photo
    num_found: int = 0  # number of faces found
    faces: tuple[tuple[Face, bytes], ...] = ()  # chosen faces, in coordinates of the upright photo, and their crops


def align_photos(
    root: str, names: list[str], options: PhotoOptions, workers: int
) -> Iterator[tuple[str, AlignedPhoto]]:
    """Yields (name, AlignedPhoto) of the photos ``names`` below ``root``, in their order."""
    for chunk, results in ordered_map(partial(_align_chunk, root, options), in_chunks(names, CHUNK), workers):
        yield from zip(chunk, results)


def _align_chunk(root: str, options: PhotoOptions, names: list[str]) -> list[AlignedPhoto]:
    detector = detector_of_process(options.detector)
    return [align_photo(os.path.join(root, name), root, detector, options) for name in names]


def align_photo(path: str, root: str, detector: Detector, options: PhotoOptions) -> AlignedPhoto:
    """Aligns the faces of one photo in the folder `root`; errors are part of the result."""
    try:
        data = read_image_file(path, root)
        stored = header(data)
        if stored.pixels > options.max_pixels:
            return AlignedPhoto(TOO_LARGE, f"{stored.pixels / 1e6:.1f} megapixels")
        with DecoderMessages() as messages:
            photo = messages.checked(lambda: decode_any_size(data))
    except (ValueError, OSError) as error:
        return AlignedPhoto(DAMAGED, (error.strerror if isinstance(error, OSError) else None) or str(error))
    turned = stored.orientation != 1
    try:
        faces_found = find_faces(photo, detector, options.detect_side)
        detected = [face for face in faces_found if face.score >= options.min_score]
        chosen = choose(detected, options.which, (photo.shape[0], photo.shape[1]))
        faces = tuple((face, encode(crop(photo, face.landmarks), options.format)) for face in chosen)
    except Exception as error:  # a user's detector may raise anything: one photo must not end hours of work
        return AlignedPhoto(FAILED, f"{type(error).__name__}: {error}", turned)
    return AlignedPhoto(ALIGNED if faces else NO_FACE, "", turned, len(detected), faces)


def find_faces(photo: np.ndarray, detector: Detector, side: int) -> list[Face]:
    """Returns the faces of a photo (H, W, 3) uint8 RGB, which is scaled to at most ``side`` pixels on the longer side.

    Faces without a finite similarity transform to the template are left out.
    """
    scale = min(1.0, side / max(photo.shape[:2]))
    small = cv2.resize(photo, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA) if scale < 1 else photo
    stretch = np.array(photo.shape[1::-1]) / small.shape[1::-1]
    faces = []
    for face in detector.detect(small.copy()):
        # Scaling keeps the corner of the first pixel, (-0.5, -0.5), not its center, (0, 0).
        box, landmarks = ((np.reshape(p, (-1, 2)) + 0.5) * stretch - 0.5 for p in (face.box, face.landmarks))
        if landmarks.shape != (5, 2) or box.shape != (2, 2):
            shapes = f"landmarks of shape {np.shape(face.landmarks)} and a box of shape {np.shape(face.box)}"
            raise ValueError(f"the detector gave {shapes}, expected (5, 2) and (4,)")
        with np.errstate(divide="ignore", invalid="ignore"):
            if np.isfinite(similarities(landmarks)).all():
                faces.append(Face(float(face.score), box.ravel(), landmarks))
    return faces


def choose(faces: list[Face], which: str, size: tuple[int, int]) -> list[Face]:
    """Returns the "largest" or the most "central" face of a photo of ``size`` (H, W), or "all" from left to right."""
    if which == "all":
        return sorted(faces, key=lambda face: face.box[0])
    if which == "largest":
        return sorted(faces, key=lambda face: -np.prod(face.box[2:] - face.box[:2]))[:1]
    middle = np.array(size[::-1]) / 2 - 0.5
    return sorted(faces, key=lambda face: np.linalg.norm((face.box[:2] + face.box[2:]) / 2 - middle))[:1]


def crop(photo: np.ndarray, landmarks: np.ndarray) -> np.ndarray:
    """Returns the aligned face (112, 112, 3) of a photo (H, W, 3), without aliasing even for large faces."""
    similarity = similarities(landmarks)
    scale = math.hypot(*similarity[:, 0])
    if scale < 0.5:  # a bilinear warp reads 2 x 2 pixels for each output pixel, and would skip others
        small = cv2.resize(photo, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
        stretch = np.array(photo.shape[1::-1]) / small.shape[1::-1]
        # The similarity maps pixels of the photo to the aligned face. To map those of the smaller photo instead, insert
        # photo = stretch * small + (stretch / 2 - 0.5), which keeps the corner of the first pixel, (-0.5, -0.5).
        similarity[:, 2] += similarity[:, :2] @ (stretch / 2 - 0.5)
        similarity[:, :2] *= stretch
        photo = small
    return align(photo, similarity)
