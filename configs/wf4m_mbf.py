"""WebFace4M, MobileFaceNet."""

from configs.sets import webface4m

config = webface4m("mbf", weight_decay=1e-4)
