"""MS1MV3, r50."""

from configs.sets import ms1mv3, published

config = ms1mv3("r50", published=published(79.14, 96.37, 94.47))
