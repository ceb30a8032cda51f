"""Your own settings. What stands here wins over default.py, and the command line wins over both.

Every setting and its default is in default.py. Some that are often changed:
"""

from easydict import EasyDict as edict

config = edict()

# config.debug = True  # dummy images instead of the data set: is IO what slows training?
# config.batch_size = 128  # of each rank
# config.sample_ratio = 0.1  # share of the class centers that take part in a step
# config.data_root = "/train_tmp"  # where <name>/train.rec of the real data sets are
