"""WebFace4M, r100."""

from configs.sets import published, webface4m

config = webface4m("r100", published=published(89.87, 97.19, 95.48))
