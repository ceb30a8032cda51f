"""The positions of the five landmarks of a drawn face."""

from __future__ import annotations

import numpy as np

from .curves import SAMPLES
from .draw import FRACTION_BITS, project
from .features import Shape, mouth, nose
from .identity import draw_identity
from .nuisance import draw_nuisance

CORNERS = [0, 4 * SAMPLES]  # of the mouth: the first and fifth control points of its outline
BALL = 2  # the tip of the nose among its shapes


def face_landmarks(seed: int, identity: int, image: int, size: int = 112) -> np.ndarray:
    """Returns (5, 2) float64, x and y in pixels of draw_face's image: eyes, tip of the nose, corners of the mouth.

    Of a pair the one on the left of the image is the first. Exact to a sixteenth of a pixel, as the drawing.

    Raises:
        ValueError: seed, identity or image is negative or exceeds 32 bits.
    """
    who, how = draw_identity(seed, identity), draw_nuisance(seed, identity, image)
    across = who.eye_spacing * who.face_width
    ball = list(nose(who))[BALL]
    lips = next(mouth(who, how))
    shapes = [
        Shape(np.array([(-across, who.eye_height), (across, who.eye_height)]), lips.color),
        ball._replace(points=ball.points.mean(axis=0, keepdims=True)),
        lips._replace(points=lips.points[CORNERS]),
    ]
    return np.concatenate(project(shapes, who, how, size)) / (1 << FRACTION_BITS)
