"""WebFace42M, r50 on 32 GPUs."""

from configs.sets import published, webface42m

config = webface42m("r50", gpus=32, published=published(94.04, 97.48, 95.94))
