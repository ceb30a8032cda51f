"""WebFace42M, r100 on 32 GPUs, the classes of the batch alone."""

from configs.sets import published, webface42m

config = webface42m("r100", batch_size=512, sample_rate=0, gpus=32, published=published(93.08, 97.51, 95.88))
