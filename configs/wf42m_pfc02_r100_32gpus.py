"""WebFace42M, r100 on 32 GPUs."""

from configs.sets import published, webface42m

config = webface42m("r100", gpus=32, published=published(96.57, 97.83, 96.50))
