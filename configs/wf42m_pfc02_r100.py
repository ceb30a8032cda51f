"""WebFace42M, r100 on 8 GPUs, 20 % of the centers in a step."""

from configs.sets import published, webface42m

config = webface42m("r100", lr=0.1, warmup_epoch=0, published=published(96.27, 97.70, 96.31))
