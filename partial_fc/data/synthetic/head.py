"""Head, ears, neck, skin marks, beard and hair as colored outlines, in the face units of `identity`."""

from collections.abc import Iterator

import numpy as np

from .curves import closed_curve, mirrored, open_curve, oval, ribbon
from .features import INK, Shape, mouth_height
from .identity import Identity, mix
from .nuisance import Nuisance


def behind(who: Identity, how: Nuisance) -> Iterator[Shape]:
    """Yields the shapes behind the face: long hair, neck, shoulders and ears."""
    yield from hair_behind(who, how)
    neck = who.neck_width * who.face_width
    shade = mix(who.skin, 0.5 * who.skin, 0.35)
    yield Shape(np.array([(-neck, 0.4), (neck, 0.4), (neck * 1.15, 1.5), (-neck * 1.15, 1.5)]), shade, 0.0, -0.2)
    shoulders = [(-2.4, 2.6), (-1.7, 1.5), (-neck, 1.22), (0.0, 1.40), (neck, 1.22), (1.7, 1.5), (2.4, 2.6)]
    yield Shape(closed_curve(shoulders), how.cloth, 0.0, -0.3)
    size = who.ear_size
    ear = oval(who.face_width + who.ear_out, who.ear_height + 0.06, 0.5 * size, size, 12)
    hollow = oval(who.face_width + who.ear_out + 0.01, who.ear_height + 0.06, 0.25 * size, 0.6 * size, 8)
    for points, color in ((ear, mix(who.skin, (200, 90, 80), 0.12)), (hollow, mix(who.skin, INK, 0.3))):
        yield Shape(points, color, 0.0, -0.1)
        yield Shape(mirrored(points), color, 0.0, -0.1)


def face(who: Identity) -> Iterator[Shape]:
    """The skin, the flush of the cheeks, freckles and moles."""
    wide, jaw = who.face_width, who.face_width * who.jaw_width
    edge = [  # of the right half, from the crown to the chin
        (0.0, -who.crown),
        (0.60 * wide * who.forehead_width, -0.93 * who.crown),
        (0.96 * wide * who.forehead_width, -0.52),
        (wide, who.cheek_height),
        (jaw, who.jaw_height),
        (jaw * who.chin_width, 0.90 * who.chin_length),
        (0.0, who.chin_length),
    ]
    yield Shape(closed_curve(edge + [(-x, y) for x, y in edge[-2:0:-1]]), who.skin, 0.0)
    flush = oval(0.62 * who.face_width, 0.24, 0.17, 0.13, 12)
    for points in (flush, mirrored(flush)):
        yield Shape(points, mix(who.skin, (206, 84, 84), who.cheek_red))
    if who.freckles > 0:
        dark = mix(who.skin, (110, 60, 36), 0.5)
        for x, y in who.freckle_spots[: int(len(who.freckle_spots) * who.freckles)]:
            yield Shape(oval((2 * x - 1) * 0.6 * who.face_width, -0.05 + 0.42 * y, 0.018, 0.018, 6), dark)
    for x, y, radius in who.moles:
        if radius > 0.008:
            yield Shape(oval(x * who.face_width / 0.72, y, radius, radius, 8), mix(who.skin, INK, 0.8))


def beard(who: Identity) -> Iterator[Shape]:
    """A beard along the jaw and a moustache, each only if the person has one."""
    color = 0.85 * who.hair
    height = mouth_height(who)
    if who.beard > 0:
        top = who.jaw_height - 0.25
        jaw = who.face_width * who.jaw_width
        inner = max(height + who.lip_lower + 0.06, who.chin_length - who.beard_height)
        right = [(0.97 * jaw, top), (1.0 * jaw, who.jaw_height), (jaw * who.chin_width, 0.92 * who.chin_length)]
        lip = [(-0.75 * jaw, height - 0.1), (-0.4 * jaw, inner), (0.4 * jaw, inner), (0.75 * jaw, height - 0.1)]
        points = [*right, (0.0, 1.02 * who.chin_length), *[(-x, y) for x, y in right[::-1]], *lip]
        yield Shape(closed_curve(points), mix(who.skin, color, 0.35 + 0.6 * who.beard), 0.0)
    if who.moustache > 0:
        y = height - who.lip_upper - 0.5 * who.moustache_width
        half = 0.9 * who.mouth_width
        line = open_curve(
            [(-half, y + 0.05), (-0.4 * half, y - 0.01), (0.0, y), (0.4 * half, y - 0.01), (half, y + 0.05)]
        )
        yield Shape(ribbon(line, 2 * who.moustache_width), mix(who.skin, color, 0.35 + 0.6 * who.moustache), lift=0.06)


def hair_behind(who: Identity, how: Nuisance) -> Iterator[Shape]:
    """The mass of hair around the skull, down to the shoulders if it is long."""
    if who.hair_length < -0.9:
        return
    out = who.hair_volume + how.hair_volume
    wide = who.face_width + 0.5 * out + 0.03
    end = max(who.hair_side, -0.3 + 1.2 * who.hair_length)
    right = [
        (0.7 * wide, -who.crown - 0.7 * out),
        (wide + 0.3 * out, -0.5),
        (wide + 0.4 * out, 0.5 * end),
        (0.9 * wide, end),
    ]
    shape = [(0.0, -who.crown - out), *right, *[(-x, y) for x, y in right[::-1]]]
    yield Shape(closed_curve(shape), 0.72 * who.hair, 0.0, -0.25)


def hair_front(who: Identity, how: Nuisance) -> Iterator[Shape]:
    """Hair over the forehead: hairline, parting, fringe, sideburns, and lighter streaks."""
    if who.hair_length < -0.9:
        return
    out = who.hair_volume + how.hair_volume
    wide = who.face_width * who.forehead_width + 0.02
    line, part = who.hair_line, who.hair_part * who.face_width
    side = max(who.hair_side, line + 0.1)
    inner = 0.90 * wide - max(who.hair_temple, 0.0)
    crest = [(wide + 0.4 * out, -0.5), (0.72 * wide, -who.crown - 0.7 * out), (0.0, -who.crown - out)]
    crest += [(-x, y) for x, y in crest[1::-1]]
    below = [(-wide, side), (-inner, line + 0.12), (0.5 * (part - inner), line + who.hair_fringe), (part, line)]
    below += [(0.5 * (part + inner), line + who.hair_fringe), (inner, line + 0.12), (wide, side)]
    yield Shape(closed_curve(crest + below), who.hair, 0.0, 0.12)
    light = mix(who.hair, (255, 232, 190), who.hair_streaks)
    top = -who.crown - 0.6 * out
    for reach in (-0.8, -0.35, 0.4, 0.85):
        lock = open_curve(
            [(part, line - 0.03), (part + 0.5 * reach * wide, 0.5 * (top + line) - 0.06), (reach * wide, line)]
        )
        yield Shape(ribbon(lock, 0.035), light, 0.0, 0.14)
