"""MS1MV3, r100."""

from configs.sets import ms1mv3, published

config = ms1mv3("r100", published=published(81.97, 96.85, 95.02))
