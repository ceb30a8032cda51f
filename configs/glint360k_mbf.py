"""Glint360K, MobileFaceNet."""

from configs.sets import glint360k, published

config = glint360k("mbf", published=published(70.18, 95.04, 92.62))
