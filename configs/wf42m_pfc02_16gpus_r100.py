"""WebFace42M, r100 on 16 GPUs of 256 images."""

from configs.sets import published, webface42m

config = webface42m("r100", batch_size=256, lr=0.3, warmup_epoch=1, gpus=16, published=published(96.69, 97.85, 96.63))
