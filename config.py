"""Your own settings, for both trainers. What stands here wins over default.py, and the command line over both.

Every setting and its default is in default.py. Some that are often changed:
"""

from easydict import EasyDict as edict

config = edict()

# config.debug = True  # dummy images instead of the data set: is IO what slows training?
# config.dataset = "emore"  # the data set, where --dataset names no other
# config.rec = "/train_tmp/faces_emore"  # its folder, or the path of its train.rec
# config.output = "ms1mv3_arcface_r50"  # folder of the run, instead of one in models_root
# config.fp16 = True  # backbone in float16, on GPUs
# config.batch_size = 128  # of each rank
# config.sample_rate = 0.1  # share of the class centers that take part in a step; also called sample_ratio
# config.num_epoch = 20  # length of the training, in place of max_update
# config.lr_func = lambda epoch: 0.1 ** (epoch // 8)  # factor of the learning rate in an epoch
# config.data_root = "/train_tmp"  # where <name>/train.rec of the real data sets are
