"""MS1MV2, r100."""

from configs.sets import ms1mv2, published

config = ms1mv2("r100", published=published(78.12, 96.37, 94.27))
