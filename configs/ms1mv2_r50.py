"""MS1MV2, r50."""

from configs.sets import ms1mv2, published

config = ms1mv2("r50", weight_decay=1e-4, published=published(75.13, 95.97, 94.07))
