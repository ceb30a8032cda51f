"""WebFace42M, r100 on 32 GPUs, 30 % of the centers in a step."""

from configs.sets import published, webface42m

config = webface42m("r100", sample_rate=0.3, gpus=32, published=published(96.69, 97.82, 96.45))
