"""MS1MV3, MobileFaceNet."""

from configs.sets import ms1mv3, published

config = ms1mv3("mbf", weight_decay=1e-4, num_epoch=40, published=published(63.78, 94.23, 91.33))
