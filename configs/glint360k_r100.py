"""Glint360K, r100."""

from configs.sets import glint360k, published

config = glint360k("r100", published=published(89.52, 97.55, 96.38))
