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


def features(who: Identity, how: Nuisance) -> list[Shape]:
    """Everything between brows and chin, back to front."""
    shapes = [*nose(who), *mouth(who, how)]
    for side in (-1.0, 1.0):
        shapes += [*eye(who, how, side), brow(who, how, side)]
    return shapes


def eye(who: Identity, how: Nuisance, side: float) -> Iterator[Shape]:
    """One eye, back to front: bag, white, iris, pupil, crease and lash line."""
    place = at(who.eye_spacing * who.face_width, who.eye_height, -who.eye_tilt, side)
    open_part = 1.0 - min(max(how.eye_closure, 0.0), 0.85)
    half, upper, lower = who.eye_width, who.eye_upper * open_part, who.eye_lower * (0.4 + 0.6 * open_part)
    lid = [(-half, 0.25 * lower), (-0.55 * half, -0.8 * upper), (0.1 * half, -upper), (half, 0.0)]
    under = [(0.55 * half, 0.85 * lower), (-0.4 * half, lower)]
    if who.eye_bag > 0:
        bag = open_curve([(-0.9 * half, lower + 0.03), (0.0, lower + 0.085), (0.9 * half, lower + 0.04)])
        yield Shape(place(ribbon(bag, 0.03)), mix(who.skin, INK, 0.28 * who.eye_bag))
    yield Shape(place(closed_curve(lid + under)), (240, 238, 234))
    centre = 0.3 * half * how.gaze_x * side
    look = -0.1 * upper + 0.02 * how.gaze_y
    for radius, color in ((who.iris_size, who.iris), (0.45 * who.iris_size, INK)):
        disc = oval(centre, look, radius, radius)
        room = 1 - np.minimum((disc[:, 0] / half) ** 2, 1.0)  # between the lids, which are approximately parabolas
        disc[:, 1] = np.clip(disc[:, 1], -upper * room, lower * room)
        yield Shape(place(disc), color)
    crease = open_curve([(x, y - who.eye_crease - 0.02) for x, y in lid])
    yield Shape(place(ribbon(crease, 0.014)), mix(who.skin, INK, 0.35))
    yield Shape(place(ribbon(open_curve(lid), who.lash_width, taper=0.4)), INK)


def brow(who: Identity, how: Nuisance, side: float) -> Shape:
    """One eyebrow: a broad line, thickest in the middle."""
    height = who.eye_height - who.eye_upper - who.brow_gap - 0.05 * how.brow_raise
    place = at(who.eye_spacing * who.face_width + who.brow_inset, height, -who.brow_tilt, side)
    half = who.brow_length
    line = open_curve([(-half, 0.02), (-0.3 * half, -0.6 * who.brow_arch), (0.4 * half, -who.brow_arch), (half, 0.03)])
    return Shape(place(ribbon(line, who.brow_width)), mix(who.skin, 0.75 * who.hair, who.brow_shade), lift=0.02)


def nose(who: Identity) -> Iterator[Shape]:
    """A shaded flank on both sides, a lighter ridge, the wings and two nostrils."""
    top = who.eye_height + 0.04
    base = top + who.nose_length
    bridge, wing, tip = who.nose_bridge, who.nose_width, who.nose_tip
    shade = mix(who.skin, 0.45 * who.skin, 2 * who.nose_shade)
    flank = [(bridge, top), (bridge * 1.2, top + 0.6 * who.nose_length), (wing, base - tip), (wing * 0.95, base)]
    left = [(-x, y) for x, y in flank[::-1]]
    bottom = (0.0, base + 0.5 * tip + who.nose_point)
    yield Shape(closed_curve([*flank, bottom, *left]), shade, lift=0.06)
    ridge = [(0.45 * x, y - 0.04) for x, y in (*flank, *left)]
    yield Shape(closed_curve(ridge), mix(who.skin, (255, 246, 236), 0.25), lift=0.16)
    ball = oval(0.0, base - 0.3 * tip + 0.6 * who.nose_point, 0.55 * wing, tip, 12)
    yield Shape(ball, mix(who.skin, (255, 240, 230), 0.15), lift=0.20)
    for side in (-1.0, 1.0):
        hole = oval(
            side * 0.5 * wing, base + 0.2 * tip + 0.4 * who.nose_point, 1.3 * who.nostril_size, who.nostril_size, 8
        )
        yield Shape(hole, mix(who.skin, INK, 0.75), lift=0.12)


def mouth_height(who: Identity) -> float:
    """Where the lips meet: below the nose, with some chin left under them."""
    return min(who.eye_height + 0.04 + who.nose_length + who.mouth_gap, who.chin_length - 0.26)


def mouth(who: Identity, how: Nuisance) -> Iterator[Shape]:
    """Lips, the open mouth between them, and the line where they meet."""
    height = mouth_height(who)
    smile = how.smile
    half = who.mouth_width * (1 + 0.22 * max(smile, 0.0) - 0.1 * max(-smile, 0.0))
    corner = height + who.lip_corner - 0.09 * smile
    gap = 0.16 * max(how.mouth_open, 0.0)
    upper, lower = who.lip_upper, who.lip_lower
    bow = upper * (1 - who.lip_bow)
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
    yield Shape(closed_curve(top + low), who.lips, lift=0.05)
    seam = open_curve([(-half, corner), (0.0, height + 0.01), (half, corner)])
    if gap > 0.02:
        inner = closed_curve([(-0.85 * half, corner), (0.0, height), (0.85 * half, corner), (0.0, height + gap)])
        yield Shape(inner, (70, 24, 26), lift=0.04)
        teeth = oval(0.0, height + 0.3 * gap, 0.55 * half, 0.3 * gap, 10)
        yield Shape(teeth, (236, 232, 222), lift=0.04)
    else:
        yield Shape(ribbon(seam, 0.022), mix(who.lips, INK, 0.6), lift=0.05)
    if who.fold > 0:
        yield from folds(who, half, corner)


def folds(who: Identity, half: float, corner: float) -> Iterator[Shape]:
    """The lines from the nose to the corners of the mouth."""
    start = who.eye_height + 0.04 + who.nose_length
    line = open_curve(
        [(who.nose_width + 0.03, start - 0.03), (half + 0.05, (start + corner) / 2), (half + 0.07, corner + 0.05)]
    )
    right = ribbon(line, 0.026)
    for points in (right, mirrored(right)):
        yield Shape(points, mix(who.skin, INK, 0.30 * who.fold))
