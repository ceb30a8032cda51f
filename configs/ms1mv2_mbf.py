"""MS1MV2, MobileFaceNet."""

from configs.sets import ms1mv2, published

config = ms1mv2("mbf", weight_decay=1e-4, num_epoch=40, published=published(62.07, 93.61, 90.28))
