"""WebFace42M, r200 on 32 GPUs, 30 % of the centers in a step."""

from configs.sets import published, webface42m

config = webface42m("r200", sample_rate=0.3, gpus=32, published=published(97.70, 97.97, 96.93))
