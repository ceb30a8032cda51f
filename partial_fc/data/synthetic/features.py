"""Eyes, brows, nose and mouth as colored outlines, in the face units of `identity`."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from .curves import closed_curve, mirrored, open_curve, oval, ribbon
from .identity import Identity, mix
from .nuisance import Nuisance

Color = np.ndarray | Sequence[float]
INK = (24, 18, 18)


class Shape(NamedTuple):
    """A filled outline. It turns with the head if it is on the front (surface 1), and not if it is at the rim (0)."""

    points: np.ndarray  # (N, 2)
    color: Color  # (3,)
    surface: float = 1.0
    lift: float = 0.0  # distance from the surface towards the viewer, face units


def at(x: float, y: float, angle: float, side: float) -> Callable[[np.ndarray], np.ndarray]:
    """Returns a function that rotates an outline of the right half of the face and moves it to (x, y) on a side."""
    cosine, sine = np.cos(angle), np.sin(angle)
    turn = np.array([[cosine, sine], [-sine, cosine]]) * (side, 1.0)
    return lambda points: points @ turn + (side * x, y)


def features(person: Identity, nuisance: Nuisance) -> list[Shape]:
    """Everything between brows and chin, back to front."""
    shapes = [*nose(person), *mouth(person, nuisance)]
    for side in (-1.0, 1.0):
        shapes += [*eye(person, nuisance, side), brow(person, nuisance, side)]
    return shapes


def eye(person: Identity, nuisance: Nuisance, side: float) -> Iterator[Shape]:
    """One eye, back to front: bag, white, iris, pupil, crease and lash line."""
    place = at(person.eye_spacing * person.face_width, person.eye_height, -person.eye_tilt, side)
    open_part = 1.0 - min(max(nuisance.eye_closure, 0.0), 0.85)
    half, upper, lower = person.eye_width, person.eye_upper * open_part, person.eye_lower * (0.4 + 0.6 * open_part)
    lid = [(-half, 0.25 * lower), (-0.55 * half, -0.8 * upper), (0.1 * half, -upper), (half, 0.0)]
    under = [(0.55 * half, 0.85 * lower), (-0.4 * half, lower)]
    if person.eye_bag > 0:
        bag = open_curve([(-0.9 * half, lower + 0.03), (0.0, lower + 0.085), (0.9 * half, lower + 0.04)])
        yield Shape(place(ribbon(bag, 0.03)), mix(person.skin, INK, 0.28 * person.eye_bag))
    yield Shape(place(closed_curve(lid + under)), (240, 238, 234))
    centre = 0.3 * half * nuisance.gaze_x * side
    look = -0.1 * upper + 0.02 * nuisance.gaze_y
    for radius, color in ((person.iris_size, person.iris), (0.45 * person.iris_size, INK)):
        disc = oval(centre, look, radius, radius)
        room = 1 - np.minimum((disc[:, 0] / half) ** 2, 1.0)  # between the lids, which are approximately parabolas
        disc[:, 1] = np.clip(disc[:, 1], -upper * room, lower * room)
        yield Shape(place(disc), color)
    crease = open_curve([(x, y - person.eye_crease - 0.02) for x, y in lid])
    yield Shape(place(ribbon(crease, 0.014)), mix(person.skin, INK, 0.35))
    yield Shape(place(ribbon(open_curve(lid), person.lash_width, taper=0.4)), INK)


def brow(person: Identity, nuisance: Nuisance, side: float) -> Shape:
    """One eyebrow: a broad line, thickest in the middle."""
    height = person.eye_height - person.eye_upper - person.brow_gap - 0.05 * nuisance.brow_raise
    place = at(person.eye_spacing * person.face_width + person.brow_inset, height, -person.brow_tilt, side)
    half = person.brow_length
    line = open_curve(
        [(-half, 0.02), (-0.3 * half, -0.6 * person.brow_arch), (0.4 * half, -person.brow_arch), (half, 0.03)]
    )
    return Shape(
        place(ribbon(line, person.brow_width)), mix(person.skin, 0.75 * person.hair, person.brow_shade), lift=0.02
    )


def nose(person: Identity) -> Iterator[Shape]:
    """A shaded flank on both sides, a lighter ridge, the wings and two nostrils."""
    top = person.eye_height + 0.04
    base = top + person.nose_length
    bridge, wing, tip = person.nose_bridge, person.nose_width, person.nose_tip
    shade = mix(person.skin, 0.45 * person.skin, 2 * person.nose_shade)
    flank = [(bridge, top), (bridge * 1.2, top + 0.6 * person.nose_length), (wing, base - tip), (wing * 0.95, base)]
    left = [(-x, y) for x, y in flank[::-1]]
    bottom = (0.0, base + 0.5 * tip + person.nose_point)
    yield Shape(closed_curve([*flank, bottom, *left]), shade, lift=0.06)
    ridge = [(0.45 * x, y - 0.04) for x, y in (*flank, *left)]
    yield Shape(closed_curve(ridge), mix(person.skin, (255, 246, 236), 0.25), lift=0.16)
    ball = oval(0.0, base - 0.3 * tip + 0.6 * person.nose_point, 0.55 * wing, tip, 12)
    yield Shape(ball, mix(person.skin, (255, 240, 230), 0.15), lift=0.20)
    for side in (-1.0, 1.0):
        hole = oval(
            side * 0.5 * wing,
            base + 0.2 * tip + 0.4 * person.nose_point,
            1.3 * person.nostril_size,
            person.nostril_size,
            8,
        )
        yield Shape(hole, mix(person.skin, INK, 0.75), lift=0.12)


def mouth_height(person: Identity) -> float:
    """Where the lips meet: below the nose, with some chin left under them."""
    return min(person.eye_height + 0.04 + person.nose_length + person.mouth_gap, person.chin_length - 0.26)


def mouth(person: Identity, nuisance: Nuisance) -> Iterator[Shape]:
    """Lips, the open mouth between them, and the line where they meet."""
    height = mouth_height(person)
    smile = nuisance.smile
    half = person.mouth_width * (1 + 0.22 * max(smile, 0.0) - 0.1 * max(-smile, 0.0))
    corner = height + person.lip_corner - 0.09 * smile
    gap = 0.16 * max(nuisance.mouth_open, 0.0)
    upper, lower = person.lip_upper, person.lip_lower
    bow = upper * (1 - person.lip_bow)
    top = [
        (-half, corner),
        (-0.3 * half, height - upper),
        (0.0, height - bow),
        (0.3 * half, height - upper),
        (half, corner),
    ]
    low = [
        (0.5 * half, height + 0.75 * lower + gap),
        (0.0, height + lower + gap),
        (-0.5 * half, height + 0.75 * lower + gap),
    ]
    yield Shape(closed_curve(top + low), person.lips, lift=0.05)
    seam = open_curve([(-half, corner), (0.0, height + 0.01), (half, corner)])
    if gap > 0.02:
        inner = closed_curve([(-0.85 * half, corner), (0.0, height), (0.85 * half, corner), (0.0, height + gap)])
        yield Shape(inner, (70, 24, 26), lift=0.04)
        teeth = oval(0.0, height + 0.3 * gap, 0.55 * half, 0.3 * gap, 10)
        yield Shape(teeth, (236, 232, 222), lift=0.04)
    else:
        yield Shape(ribbon(seam, 0.022), mix(person.lips, INK, 0.6), lift=0.05)
    if person.fold > 0:
        yield from folds(person, half, corner)


def folds(person: Identity, half: float, corner: float) -> Iterator[Shape]:
    """The lines from the nose to the corners of the mouth."""
    start = person.eye_height + 0.04 + person.nose_length
    line = open_curve(
        [(person.nose_width + 0.03, start - 0.03), (half + 0.05, (start + corner) / 2), (half + 0.07, corner + 0.05)]
    )
    right = ribbon(line, 0.026)
    for points in (right, mirrored(right)):
        yield Shape(points, mix(person.skin, INK, 0.30 * person.fold))
