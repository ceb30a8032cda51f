"""WebFace12M, r50."""

from configs.sets import webface12m

config = webface12m("r50")
