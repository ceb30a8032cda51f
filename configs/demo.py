"""The demo's synthetic faces, which the first training draws; it trains on a CPU."""

from easydict import EasyDict as edict

config = edict()
config.margin_list = (1.0, 0.5, 0.0)
config.network = "small"
config.output = None
config.embedding_size = 128
config.sample_rate = 1.0
config.fp16 = False
config.weight_decay = 5e-4
config.batch_size = 64
config.lr = 0.1
config.verbose = 500
config.frequent = 50

config.rec = "demo"
config.num_classes = 1000
config.num_image = 20000
config.num_epoch = 6
config.warmup_epoch = 1
config.val_targets = ["demo_val"]
config.gpus = 2
config.published = {"demo_val": (97.3, 1.5)}
