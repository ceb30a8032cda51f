"""WebFace12M, MobileFaceNet."""

from configs.sets import webface12m

config = webface12m("mbf", weight_decay=1e-4)
