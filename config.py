"""Your own settings, for both trainers. They win over the defaults and presets, and the command line wins over them.

docs/configuration.md lists every setting with its default. Some that are often changed:
"""

from easydict import EasyDict as edict

config = edict()

# config.debug = True  # dummy images instead of the data set, to see whether IO slows the training
# config.dataset = "emore"  # data set, unless --dataset names another one
# config.rec = "/train_tmp/faces_emore"  # folder of the data set, or path of its train.rec
# config.output = "ms1mv3_arcface_r50"  # folder of the run, instead of a folder in models_root
# config.fp16 = True  # backbone in float16, on GPUs
# config.batch_size = 128  # images per rank and step
# config.sample_rate = 0.1  # fraction of the class centers sampled per step; also called sample_ratio
# config.num_epoch = 20  # length of the training, instead of max_update
# config.lr_func = lambda epoch: 0.1 ** (epoch // 8)  # factor of the learning rate in an epoch
# config.data_root = "/train_tmp"  # folder that holds the data sets as <name>/train.rec
