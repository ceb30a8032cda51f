"""Glint360K, r50."""

from configs.sets import glint360k, published

config = glint360k("r50", published=published(86.34, 97.16, 95.81))
