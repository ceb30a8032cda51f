"""WebFace4M, r50."""

from configs.sets import webface4m

config = webface4m("r50")
