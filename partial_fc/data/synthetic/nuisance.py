"""The conditions of an image: everything that differs between two images of one person.

`Nuisance` contains numbers, and the generator `random` for parts that need many of them (background, noise).
"""

from types import SimpleNamespace

from .identity import random_stream

IMAGE_STREAM = 2

# name: (mean, spread); values are the mean of three uniform draws from mean - spread to mean + spread.
BELLS: dict[str, tuple[float, float]] = {
    # pose: radians, then face units
    "yaw": (0.0, 0.44),
    "pitch": (0.0, 0.28),
    "roll": (0.0, 0.25),
    "scale": (1.0, 0.18),
    "stretch": (0.0, 0.05),
    "shear": (0.0, 0.05),
    "shift_x": (0.0, 0.24),
    "shift_y": (0.0, 0.24),
    # expression
    "smile": (0.2, 0.8),
    "mouth_open": (-0.1, 0.6),
    "brow_raise": (0.0, 1.0),
    "eye_closure": (-0.15, 0.55),
    "gaze_x": (0.0, 1.0),
    "gaze_y": (0.0, 0.7),
    # hair in this image
    "hair_volume": (0.0, 0.05),
    # light
    "gain": (1.0, 0.50),
    "warmth": (0.0, 0.36),
    "tint": (0.0, 0.15),
    "gamma": (0.0, 0.50),
    "slope_x": (0.0, 0.60),
    "slope_y": (0.0, 0.40),
    "veil": (-0.05, 0.25),
}
# name: (low, high); values are uniform.
EVEN: dict[str, tuple[float, float]] = {
    "blur": (0.0, 3.0),
    "noise": (0.0, 12.0),
    "jpeg": (60.0, 96.0),
    "occlusion": (0.0, 1.0),
    "occlusion_size": (0.0, 1.0),
    "occlusion_x": (-1.0, 1.0),
    "occlusion_y": (-1.0, 1.0),
}
COLORS = ("cloth", "wall", "cover")


class Nuisance(SimpleNamespace):
    """The conditions of an image: a float per name in BELLS and EVEN, a color (3,) per name in COLORS."""


def draw_nuisance(seed: int, identity: int, image: int) -> Nuisance:
    """Draws the conditions of an image of a person."""
    random = random_stream(IMAGE_STREAM, seed, identity, image)
    nuisance = Nuisance(random=random)
    bells = random.random((len(BELLS), 3)).mean(axis=1).tolist()
    for (name, (middle, spread)), part in zip(BELLS.items(), bells):
        setattr(nuisance, name, middle + spread * (2 * part - 1))
    for (name, (low, high)), part in zip(EVEN.items(), random.random(len(EVEN)).tolist()):
        setattr(nuisance, name, low + (high - low) * part)
    for name, color in zip(COLORS, random.random((len(COLORS), 3)) * 255):
        setattr(nuisance, name, color)
    return nuisance
