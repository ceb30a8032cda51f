"""Draws synthetic faces. `draw_face(seed, identity, image)` is a pure function of its arguments."""

from collections.abc import Iterator
from functools import lru_cache

import cv2
import numpy as np

from .camera import background, photograph
from .curves import SAMPLES, closed_curve, open_curve, oval, ribbon
from .features import INK, Shape, features, mouth, nose
from .head import beard, behind, face, hair_front
from .identity import Identity, draw_identity
from .nuisance import Nuisance, draw_nuisance

SIZE = 112  # pixels, height and width of an image
UNIT = 0.39  # one face unit, as a fraction of the image's side
FRACTION_BITS = 4  # outlines are integers in sixteenths of a pixel, which are equal on every machine
DEPTH = 0.70  # of the head, face units

CORNERS = [0, 4 * SAMPLES]  # of the mouth: the first and the fifth control point of its outline
BALL = 2  # index of the tip among the shapes of the nose

_identity = lru_cache(maxsize=64)(draw_identity)


def draw_face(seed: int, identity: int, image: int, size: int = SIZE) -> np.ndarray:
    """Draws image number `image` of person `identity` as (size, size, 3) uint8 RGB, reproducible to the byte.

    Raises:
        ValueError: seed, identity or image is negative or exceeds 32 bits.
    """
    nuisance = draw_nuisance(seed, identity, image)
    return _picture(_identity(seed, identity), nuisance, size)


def encode_face(seed: int, identity: int, image: int) -> bytes:
    """Draws the same image as draw_face, as a JPEG file whose quality differs between images."""
    nuisance = draw_nuisance(seed, identity, image)
    picture = _picture(_identity(seed, identity), nuisance, SIZE)
    return cv2.imencode(".jpg", picture[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, int(nuisance.jpeg)])[1].tobytes()


def _picture(person: Identity, nuisance: Nuisance, size: int) -> np.ndarray:
    scene = background(nuisance, size)
    shapes = [
        *behind(person, nuisance),
        *face(person),
        *beard(person),
        *features(person, nuisance),
        *hair_front(person, nuisance),
        *cover(person, nuisance),
    ]
    colors = np.clip([shape.color for shape in shapes], 0, 255).tolist()
    for color, corners in zip(colors, project(shapes, person, nuisance, size)):
        cv2.fillPoly(scene, [corners], color, cv2.LINE_AA, FRACTION_BITS)
    return photograph(scene, nuisance)


def project(shapes: list[Shape], person: Identity, nuisance: Nuisance, size: int) -> list[np.ndarray]:
    """Rotates, moves and scales the head; returns an (N, 2) int32 array per shape, in 1/2**FRACTION_BITS of a pixel."""
    counts = [len(shape.points) for shape in shapes]
    x, y = np.concatenate([shape.points for shape in shapes]).T
    surface = np.repeat([shape.surface for shape in shapes], counts)
    lift = np.repeat([shape.lift for shape in shapes], counts)
    bulge = np.sqrt(np.maximum(1 - (x / (1.02 * person.face_width)) ** 2 - (y / 1.15) ** 2, 0))
    z = surface * DEPTH * bulge + lift
    # When the head turns, only its front moves; the rim of a round head does not.
    x = x * (1 - surface * (1 - np.cos(nuisance.yaw))) + z * np.sin(nuisance.yaw)
    y = y * np.cos(nuisance.pitch) + z * np.sin(nuisance.pitch)
    near = 1 + 0.10 * z
    cosine, sine = np.cos(nuisance.roll), np.sin(nuisance.roll)
    unit = UNIT * size * nuisance.scale
    across = (x * cosine - y * sine + nuisance.shear * y) * near * (1 + nuisance.stretch) + nuisance.shift_x
    down = (x * sine + y * cosine) * near * (1 - nuisance.stretch) + nuisance.shift_y
    pixels = np.stack([across, down], axis=1) * unit + (0.5 * size, 0.52 * size)
    fixed = np.rint(pixels * (1 << FRACTION_BITS)).astype(np.int32)
    return np.split(fixed, np.cumsum(counts)[:-1])


def face_landmarks(seed: int, identity: int, image: int, size: int = 112) -> np.ndarray:
    """Returns x and y, (5, 2) float64, of eyes, tip of the nose and corners of the mouth in the image of draw_face.

    They are in pixels, exact to a sixteenth of a pixel like the drawing. In each pair, the one on the left of the image
    is first. Raises ValueError as draw_face.
    """
    person, nuisance = draw_identity(seed, identity), draw_nuisance(seed, identity, image)
    across = person.eye_spacing * person.face_width
    ball = list(nose(person))[BALL]
    lips = next(mouth(person, nuisance))
    shapes = [
        Shape(np.array([(-across, person.eye_height), (across, person.eye_height)]), lips.color),
        ball._replace(points=ball.points.mean(axis=0, keepdims=True)),
        lips._replace(points=lips.points[CORNERS]),
    ]
    return np.concatenate(project(shapes, person, nuisance, size)) / (1 << FRACTION_BITS)


def cover(person: Identity, nuisance: Nuisance) -> Iterator[Shape]:
    """Yields the shapes that cover a part of the face in some images."""
    chance = nuisance.occlusion
    for draw, share in _COVERS:
        if chance < share:
            yield from draw(person, nuisance)
            return
        chance -= share


def _glasses(person: Identity, nuisance: Nuisance) -> Iterator[Shape]:
    x, y = person.eye_spacing * person.face_width, person.eye_height + 0.02
    half = min(0.16 + 0.08 * nuisance.occlusion_size, x - 0.03)
    for side in (-1.0, 1.0):
        rim = oval(side * x, y, half, half * (0.75 + 0.2 * nuisance.occlusion_x), 18)
        yield Shape(ribbon(np.concatenate([rim, rim[:2]]), 0.035, 0.0), 0.5 * nuisance.cover, lift=0.10)
        stem = np.array([(side * (x + half), y), (side * person.face_width, y - 0.02)])
        yield Shape(ribbon(stem, 0.035, 0.0), 0.5 * nuisance.cover, lift=0.02)
    yield Shape(ribbon(np.array([(half - x, y), (x - half, y)]), 0.035, 0.0), 0.5 * nuisance.cover, lift=0.14)


def _sunglasses(person: Identity, nuisance: Nuisance) -> Iterator[Shape]:
    x, y = person.eye_spacing * person.face_width, person.eye_height + 0.02
    half = min(0.19 + 0.07 * nuisance.occlusion_size, x - 0.02)
    for side in (-1.0, 1.0):
        yield Shape(
            oval(side * x, y, half, half * (0.75 + 0.2 * nuisance.occlusion_x), 14), 0.2 * nuisance.cover, lift=0.10
        )
    yield Shape(ribbon(np.array([(-x, y - 0.04), (x, y - 0.04)]), 0.05, 0.0), INK, lift=0.10)


def _mask(person: Identity, nuisance: Nuisance) -> Iterator[Shape]:
    wide, jaw = 0.96 * person.face_width, person.face_width * person.jaw_width
    top = 0.18 + 0.12 * nuisance.occlusion_size
    right = [(wide, top + 0.1), (jaw, person.jaw_height), (jaw * person.chin_width, 0.93 * person.chin_length)]
    edge = [(0.0, top - 0.04), *right, (0.0, 1.03 * person.chin_length), *[(-x, y) for x, y in right[::-1]]]
    yield Shape(closed_curve(edge), nuisance.cover, 0.0, 0.1)


def _cap(person: Identity, nuisance: Nuisance) -> Iterator[Shape]:
    wide, line = person.face_width + 0.10, -0.62 - 0.12 * nuisance.occlusion_size
    dome = [(-wide, line + 0.05), (-0.75 * wide, -1.05), (0.0, -1.30), (0.75 * wide, -1.05), (wide, line + 0.05)]
    yield Shape(closed_curve([*dome, (0.0, line + 0.02)]), nuisance.cover, 0.0, 0.15)
    brim = open_curve([(-wide, line + 0.05), (0.0, line + 0.12), (wide, line + 0.05)])
    yield Shape(ribbon(brim, 0.12), 0.7 * nuisance.cover, 0.0, 0.25)


def _patch(person: Identity, nuisance: Nuisance) -> Iterator[Shape]:
    x, y, half = 0.6 * nuisance.occlusion_x, 0.1 + 0.7 * nuisance.occlusion_y, 0.15 + 0.15 * nuisance.occlusion_size
    yield Shape(
        np.array([(x - half, y - half), (x + half, y - half), (x + half, y + half), (x - half, y + half)]),
        nuisance.cover,
    )


# Fraction of the images with each covering; the others have none.
_COVERS = ((_sunglasses, 0.03), (_glasses, 0.05), (_mask, 0.02), (_cap, 0.02), (_patch, 0.03))
