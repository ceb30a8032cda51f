"""MS1MV3, r50 on one GPU."""

from configs.sets import ms1mv3

config = ms1mv3("r50", lr=0.02, gpus=1)
