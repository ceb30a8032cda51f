"""WebFace42M, r18 on 32 GPUs, 30 % of the centers in a step."""

from configs.sets import published, webface42m

config = webface42m("r18", sample_rate=0.3, gpus=32, published=published(79.13, 95.77, 93.36))
