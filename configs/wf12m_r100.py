"""WebFace12M, r100."""

from configs.sets import published, webface12m

config = webface12m("r100", published=published(94.69, 97.59, 95.97))
