"""WebFace12M, r100, 30 % of the centers in a step."""

from configs.sets import published, webface12m

config = webface12m("r100", sample_rate=0.3, published=published(94.71, 97.64, 96.01))
