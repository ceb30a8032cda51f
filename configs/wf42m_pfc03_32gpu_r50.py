"""WebFace42M, r50 on 32 GPUs, 30 % of the centers in a step."""

from configs.sets import published, webface42m

config = webface42m("r50", sample_rate=0.3, gpus=32, published=published(94.03, 97.48, 95.94))
