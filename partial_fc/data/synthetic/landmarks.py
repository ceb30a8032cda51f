"""Where the five landmarks of a drawn face lie."""

from __future__ import annotations

import numpy as np

from .curves import SAMPLES
from .draw import FRACTION_BITS, project
from .features import Shape, mouth, nose
from .identity import draw_identity
from .nuisance import draw_nuisance

CORNERS = [0, 4 * SAMPLES]  # of the mouth on its outline, whose first and fifth control points they are
BALL = 2  # the tip of the nose among its shapes


def face_landmarks(seed: int, identity: int, image: int, size: int = 112) -> np.ndarray:
    """(5, 2) float64, x and y in pixels of what draw_face draws with the same arguments: eyes, tip of the nose, corners
    of the mouth, the left one of a pair in the picture first. Exact to a sixteenth of a pixel, as the drawing is.

    ValueError if seed, identity or image is negative or does not fit into 32 bits.
    """
    who, how = draw_identity(seed, identity), draw_nuisance(seed, identity, image)
    across = who.eye_spacing * who.face_width
    ball = list(nose(who))[BALL]
    lips = next(mouth(who, how))
    shapes = [
        Shape(np.array([(-across, who.eye_height), (across, who.eye_height)]), lips.colour),
        ball._replace(points=ball.points.mean(axis=0, keepdims=True)),
        lips._replace(points=lips.points[CORNERS]),
    ]
    return np.concatenate(project(shapes, who, how, size)) / (1 << FRACTION_BITS)
