"""WebFace42M, r50 on 16 GPUs, global batch of 8,192."""

from configs.sets import published, webface42m

config = webface42m("r50", batch_size=512, lr=0.6, warmup_epoch=4, gpus=16, published=published(93.96, 97.46, 96.12))
