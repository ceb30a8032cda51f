"""Head, ears, neck, skin marks, beard and hair as colored outlines, in the face units of `identity`."""

from collections.abc import Iterator

import numpy as np

from .curves import closed_curve, mirrored, open_curve, oval, ribbon
from .features import INK, Shape, mouth_height
from .identity import Identity, mix
from .nuisance import Nuisance


def behind(person: Identity, nuisance: Nuisance) -> Iterator[Shape]:
    """Yields the shapes behind the face: long hair, neck, shoulders and ears."""
    yield from hair_behind(person, nuisance)
    neck = person.neck_width * person.face_width
    shade = mix(person.skin, 0.5 * person.skin, 0.35)
    yield Shape(np.array([(-neck, 0.4), (neck, 0.4), (neck * 1.15, 1.5), (-neck * 1.15, 1.5)]), shade, 0.0, -0.2)
    shoulders = [(-2.4, 2.6), (-1.7, 1.5), (-neck, 1.22), (0.0, 1.40), (neck, 1.22), (1.7, 1.5), (2.4, 2.6)]
    yield Shape(closed_curve(shoulders), nuisance.cloth, 0.0, -0.3)
    size = person.ear_size
    ear = oval(person.face_width + person.ear_out, person.ear_height + 0.06, 0.5 * size, size, 12)
    hollow = oval(person.face_width + person.ear_out + 0.01, person.ear_height + 0.06, 0.25 * size, 0.6 * size, 8)
    for points, color in ((ear, mix(person.skin, (200, 90, 80), 0.12)), (hollow, mix(person.skin, INK, 0.3))):
        yield Shape(points, color, 0.0, -0.1)
        yield Shape(mirrored(points), color, 0.0, -0.1)


def face(person: Identity) -> Iterator[Shape]:
    """The skin, the flush of the cheeks, freckles and moles."""
    wide, jaw = person.face_width, person.face_width * person.jaw_width
    edge = [  # of the right half, from the crown to the chin
        (0.0, -person.crown),
        (0.60 * wide * person.forehead_width, -0.93 * person.crown),
        (0.96 * wide * person.forehead_width, -0.52),
        (wide, person.cheek_height),
        (jaw, person.jaw_height),
        (jaw * person.chin_width, 0.90 * person.chin_length),
        (0.0, person.chin_length),
    ]
    yield Shape(closed_curve(edge + [(-x, y) for x, y in edge[-2:0:-1]]), person.skin, 0.0)
    flush = oval(0.62 * person.face_width, 0.24, 0.17, 0.13, 12)
    for points in (flush, mirrored(flush)):
        yield Shape(points, mix(person.skin, (206, 84, 84), person.cheek_red))
    if person.freckles > 0:
        dark = mix(person.skin, (110, 60, 36), 0.5)
        for x, y in person.freckle_spots[: int(len(person.freckle_spots) * person.freckles)]:
            yield Shape(oval((2 * x - 1) * 0.6 * person.face_width, -0.05 + 0.42 * y, 0.018, 0.018, 6), dark)
    for x, y, radius in person.moles:
        if radius > 0.008:
            yield Shape(oval(x * person.face_width / 0.72, y, radius, radius, 8), mix(person.skin, INK, 0.8))


def beard(person: Identity) -> Iterator[Shape]:
    """A beard along the jaw and a moustache, each only if the person has one."""
    color = 0.85 * person.hair
    height = mouth_height(person)
    if person.beard > 0:
        top = person.jaw_height - 0.25
        jaw = person.face_width * person.jaw_width
        inner = max(height + person.lip_lower + 0.06, person.chin_length - person.beard_height)
        right = [
            (0.97 * jaw, top),
            (1.0 * jaw, person.jaw_height),
            (jaw * person.chin_width, 0.92 * person.chin_length),
        ]
        lip = [(-0.75 * jaw, height - 0.1), (-0.4 * jaw, inner), (0.4 * jaw, inner), (0.75 * jaw, height - 0.1)]
        points = [*right, (0.0, 1.02 * person.chin_length), *[(-x, y) for x, y in right[::-1]], *lip]
        yield Shape(closed_curve(points), mix(person.skin, color, 0.35 + 0.6 * person.beard), 0.0)
    if person.moustache > 0:
        y = height - person.lip_upper - 0.5 * person.moustache_width
        half = 0.9 * person.mouth_width
        line = open_curve(
            [(-half, y + 0.05), (-0.4 * half, y - 0.01), (0.0, y), (0.4 * half, y - 0.01), (half, y + 0.05)]
        )
        yield Shape(
            ribbon(line, 2 * person.moustache_width), mix(person.skin, color, 0.35 + 0.6 * person.moustache), lift=0.06
        )


def hair_behind(person: Identity, nuisance: Nuisance) -> Iterator[Shape]:
    """The mass of hair around the skull, down to the shoulders if it is long."""
    if person.hair_length < -0.9:
        return
    out = person.hair_volume + nuisance.hair_volume
    wide = person.face_width + 0.5 * out + 0.03
    end = max(person.hair_side, -0.3 + 1.2 * person.hair_length)
    right = [
        (0.7 * wide, -person.crown - 0.7 * out),
        (wide + 0.3 * out, -0.5),
        (wide + 0.4 * out, 0.5 * end),
        (0.9 * wide, end),
    ]
    shape = [(0.0, -person.crown - out), *right, *[(-x, y) for x, y in right[::-1]]]
    yield Shape(closed_curve(shape), 0.72 * person.hair, 0.0, -0.25)


def hair_front(person: Identity, nuisance: Nuisance) -> Iterator[Shape]:
    """Hair over the forehead: hairline, parting, fringe, sideburns, and lighter streaks."""
    if person.hair_length < -0.9:
        return
    out = person.hair_volume + nuisance.hair_volume
    wide = person.face_width * person.forehead_width + 0.02
    line, part = person.hair_line, person.hair_part * person.face_width
    side = max(person.hair_side, line + 0.1)
    inner = 0.90 * wide - max(person.hair_temple, 0.0)
    crest = [(wide + 0.4 * out, -0.5), (0.72 * wide, -person.crown - 0.7 * out), (0.0, -person.crown - out)]
    crest += [(-x, y) for x, y in crest[1::-1]]
    below = [(-wide, side), (-inner, line + 0.12), (0.5 * (part - inner), line + person.hair_fringe), (part, line)]
    below += [(0.5 * (part + inner), line + person.hair_fringe), (inner, line + 0.12), (wide, side)]
    yield Shape(closed_curve(crest + below), person.hair, 0.0, 0.12)
    light = mix(person.hair, (255, 232, 190), person.hair_streaks)
    top = -person.crown - 0.6 * out
    for reach in (-0.8, -0.35, 0.4, 0.85):
        lock = open_curve(
            [(part, line - 0.03), (part + 0.5 * reach * wide, 0.5 * (top + line) - 0.06), (reach * wide, line)]
        )
        yield Shape(ribbon(lock, 0.035), light, 0.0, 0.14)
