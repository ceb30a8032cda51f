"""WebFace42M, MobileFaceNet on 16 GPUs."""

from configs.sets import webface42m

config = webface42m("mbf", batch_size=512, weight_decay=1e-4, gpus=16, val_targets=[])
