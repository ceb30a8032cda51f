"""WebFace12M, r100, 20 % of the centers in a step."""

from configs.sets import published, webface12m

config = webface12m("r100", sample_rate=0.2, published=published(94.75, 97.60, 95.90))
