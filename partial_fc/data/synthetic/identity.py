"""The person: some sixty numbers that are the same in all images of a person.

Lengths are in face units (eye_spacing in half face widths). The origin is between the eyes and the mouth, x points to
the right, y points down, and the head extends from about -1 (crown) to +1 (chin). Colors are RGB, 0 to 255.
"""

from types import SimpleNamespace

import numpy as np

IDENTITY_STREAM = 1  # persons and images have different random numbers
LIMIT = 2**32  # SeedSequence splits larger numbers into 32-bit words, so that two keys could be equivalent

# Values are uniform in their ranges. Append new names at the end, because values are drawn in this order.
RANGES: dict[str, tuple[float, float]] = {
    # head
    "face_width": (0.60, 0.86),
    "forehead_width": (0.80, 1.02),
    "cheek_height": (-0.10, 0.22),
    "jaw_width": (0.66, 0.98),
    "jaw_height": (0.48, 0.66),
    "chin_width": (0.34, 0.66),
    "chin_length": (0.92, 1.14),
    "crown": (0.92, 1.08),
    "ear_size": (0.12, 0.26),
    "ear_height": (-0.14, 0.10),
    "ear_out": (0.00, 0.09),
    "neck_width": (0.50, 0.80),
    # eyes
    "eye_spacing": (0.41, 0.57),
    "eye_height": (-0.20, 0.00),
    "eye_width": (0.11, 0.19),
    "eye_upper": (0.045, 0.105),
    "eye_lower": (0.025, 0.065),
    "eye_tilt": (-0.38, 0.38),
    "eye_crease": (0.02, 0.07),
    "eye_bag": (-0.6, 1.0),
    "lash_width": (0.016, 0.050),
    "iris_size": (0.055, 0.090),
    "iris_colour": (0.0, 1.0),
    # brows
    "brow_gap": (0.10, 0.24),
    "brow_width": (0.025, 0.095),
    "brow_length": (0.15, 0.25),
    "brow_arch": (-0.02, 0.09),
    "brow_tilt": (-0.30, 0.30),
    "brow_inset": (-0.06, 0.05),
    "brow_shade": (0.35, 0.95),
    # nose
    "nose_length": (0.24, 0.46),
    "nose_width": (0.08, 0.20),
    "nose_tip": (0.05, 0.11),
    "nose_bridge": (0.03, 0.09),
    "nose_point": (-0.05, 0.06),
    "nose_shade": (0.10, 0.30),
    "nostril_size": (0.018, 0.045),
    # mouth
    "mouth_gap": (0.14, 0.28),
    "mouth_width": (0.16, 0.34),
    "lip_upper": (0.020, 0.075),
    "lip_lower": (0.030, 0.100),
    "lip_bow": (0.0, 0.6),
    "lip_corner": (-0.05, 0.05),
    "lip_colour": (0.15, 0.80),
    # skin
    "skin_tone": (0.0, 1.0),
    "skin_red": (-1.0, 1.0),
    "cheek_red": (0.0, 0.30),
    "fold": (-0.5, 1.0),
    "freckles": (-1.2, 1.0),
    # hair
    "hair_line": (-0.72, -0.42),
    "hair_volume": (0.02, 0.26),
    "hair_side": (-0.55, 0.30),
    "hair_length": (-1.2, 1.3),
    "hair_part": (-0.50, 0.50),
    "hair_fringe": (-0.18, 0.20),
    "hair_temple": (-0.10, 0.20),
    "hair_colour": (0.0, 1.0),
    "hair_light": (-1.0, 1.0),
    "hair_streaks": (0.0, 0.30),
    # beard
    "beard": (-1.6, 1.0),
    "beard_height": (0.10, 0.50),
    "moustache": (-1.6, 1.0),
    "moustache_width": (0.03, 0.08),
}
# Moles (x, y, radius); those with too small a radius are not drawn.
MOLES = 3
MOLE_RANGES = ((-0.55, 0.55), (-0.45, 0.85), (-0.025, 0.034))
FRECKLES = 24

SKIN = ((250, 216, 194), (232, 186, 150), (198, 144, 104), (146, 98, 66), (92, 60, 44))
HAIR = ((26, 22, 24), (58, 38, 28), (104, 66, 38), (150, 66, 32), (208, 170, 104), (172, 168, 164))
IRIS = ((52, 32, 20), (106, 70, 34), (112, 118, 54), (74, 118, 148), (128, 146, 160))


class Identity(SimpleNamespace):
    """A person: a float attribute per name in RANGES, colors (3,), moles (M, 3) and freckle positions (F, 2)."""


def between(palette: tuple[tuple[int, int, int], ...], position: float) -> np.ndarray:
    """Returns the color (3,) at `position`, 0 to 1, of a palette."""
    step, part = divmod(min(max(position, 0.0), 0.999999) * (len(palette) - 1), 1.0)
    return mix(palette[int(step)], palette[int(step) + 1], part)


def mix(color, other, part: float) -> np.ndarray:
    """Mixes a fraction `part` (0 to 1) of the other color into the first; returns (3,)."""
    return np.asarray(color, dtype=np.float64) * (1 - part) + np.asarray(other, dtype=np.float64) * part


def random_stream(*key: int) -> np.random.Generator:
    """Returns a generator seeded by a tuple of integers. Raises ValueError if one exceeds 32 bits.

    Callers use `.random()` and `.bytes()` only, whose streams NumPy keeps stable; distributions such as `.normal()` may
    change between versions.
    """
    if any(not 0 <= number < LIMIT for number in key):
        raise ValueError(f"seed, identity and image of a drawn face must be from 0 to {LIMIT - 1}, got {key}")
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(key)))


def draw_identity(seed: int, identity: int) -> Identity:
    """Draws the person with this number."""
    random = random_stream(IDENTITY_STREAM, seed, identity).random
    parts = random(len(RANGES)).tolist()
    person = Identity(**{name: low + (high - low) * part for (name, (low, high)), part in zip(RANGES.items(), parts)})
    low, high = np.array(MOLE_RANGES).T
    person.moles, person.freckle_spots = low + (high - low) * random((MOLES, 3)), random((FRECKLES, 2))
    skin = between(SKIN, person.skin_tone) + np.array([8.0, -4.0, -6.0]) * person.skin_red
    person.skin = np.clip(skin, 0, 255)
    person.hair = np.clip(between(HAIR, person.hair_colour) * (1 + 0.25 * person.hair_light), 0, 255)
    person.iris = between(IRIS, person.iris_colour)
    person.lips = mix(person.skin, (176, 52, 62), person.lip_colour)
    return person
