"""WebFace42M, r100 on 16 GPUs of 128 images."""

from configs.sets import published, webface42m

config = webface42m("r100", lr=0.2, gpus=16, published=published(96.28, 97.80, 96.57))
