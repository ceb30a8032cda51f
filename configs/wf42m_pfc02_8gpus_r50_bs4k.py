"""WebFace42M, r50 on 8 GPUs."""

from configs.sets import published, webface42m

config = webface42m("r50", batch_size=512, published=published(93.83, 97.53, 96.16))
