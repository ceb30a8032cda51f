"""Weights of backbones, the same in every environment: they depend on the name and shape of each array alone."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import numpy as np


def draw_weights(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """MXNet's name -> float32 array that reveals mistakes: slopes of both signs, scales far from 1, means from 0."""
    return {name: _draw(name, shape).astype(np.float32) for name, shape in shapes.items()}


def _draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    if name.endswith("gamma"):
        return rng.uniform(-0.4, 0.6, shape) if "relu" in name else rng.uniform(0.5, 1.5, shape)
    if name.endswith("var"):
        return rng.uniform(0.5, 2, shape)
    if name.endswith(("beta", "bias", "mean")):
        return rng.normal(0, 0.3, shape)
    return rng.normal(0, np.sqrt(2 / np.prod(shape[1:])), shape)
