"""Every setting with its default, and the presets of losses, data sets and networks.

``from default import config`` gives the settings. Later wins: the defaults here, the presets that
``generate_config`` picks, config.py, and the ``name=value`` words of the command line. A relative path starts at the
folder of this file.
"""

import os

from easydict import EasyDict as edict

from config import config as user_config
from partial_fc.layer.tiling import LOGITS_CACHE_MB
from partial_fc.utils.config import SettingsError, choose, merge

HERE = os.path.dirname(os.path.abspath(__file__))

config = edict()  # filled in below with the defaults, by generate_config with everything


def defaults() -> edict:
    """A fresh copy of every setting."""
    settings = edict()

    # Chosen by name
    settings.dataset = "demo"
    settings.loss = "arcface"
    settings.network = "small"

    # The layer
    settings.embedding_size = 512
    settings.sample_ratio = 1.0  # share r of a rank's class centers that take part in a step
    settings.bank_on_gpu = True  # False: centers and momentum in host memory, for banks larger than the GPU
    settings.bank_folder = ""  # centers and momentum in files there, for banks larger than the host's memory
    settings.tile_classes = 0  # classes that the layer works on at once; 0: what suits the device
    settings.logits_cache_mb = LOGITS_CACHE_MB  # 256; beyond it the backward pass computes logits a second time
    settings.loss_s = 64.0
    settings.margins = (1.0, 0.5, 0.0)  # (m1, m2, m3), set by the loss

    # Training
    settings.batch_size = 64  # of one rank
    settings.lr = 0.1  # of backbone and centers for a global batch of 512; for others in proportion
    settings.backbone_lr = 0.0  # of the backbone, whatever the batch; 0: what follows from lr
    settings.memory_bank_lr = 0.0  # of the class centers, likewise
    settings.warmup_steps = 0  # updates over which both rates grow from 0
    settings.max_grad_norm = 0.0  # the backbone's gradients are scaled down to this norm; 0: they are not
    settings.lr_steps = []  # updates after which both rates are divided by 10, set by the data set
    settings.max_update = 32000  # set by the data set
    settings.momentum = 0.9
    settings.wd = 5e-4
    settings.seed = 0
    settings.fp16 = False  # the backbone in float16 on GPUs; its head, the layer and what is saved stay float32
    settings.step_timeout = 600  # seconds without a step after which a rank ends the job
    settings.host_timeout = 15  # seconds without an answer from another host after which the job ends

    # The backbone
    settings.net_se = False  # squeeze-and-excitation in the residual units
    settings.net_act = ""  # prelu, relu, ...; empty is the network's own
    settings.bn_mom = 0.9
    settings.net_output = ""  # FC, E (FC with dropout), GAP or GDC; empty is the network's own

    # The data
    settings.data_root = "/train_tmp"  # of the real sets; <data_root>/<name>/train.rec
    settings.data_name = ""  # folder of the set under data_root, set by the data set
    settings.rec = ""  # a train.rec by its own path, instead of the two above
    settings.num_classes = 0  # set by the data set
    settings.image_size = 112
    settings.shuffle = True
    settings.rand_mirror = True
    settings.cutoff = 0  # side in pixels of a square to erase
    settings.color_jittering = 0.0  # strength
    settings.jpeg_compression = 0  # lowest JPEG quality that every second image is compressed with again; 0: none is
    settings.images_filter = 0  # identities with fewer images are left out
    settings.skip_bad_images = 0  # bad images each rank passes over before one ends the training
    settings.decode_threads = 0  # of each rank; 0: its share of the host's cores, 8 at most
    settings.debug = False  # dummy batches instead of the data set
    settings.val_targets = []  # validation sets: <name>.bin beside train.rec
    settings.baselines = False  # also verify raw pixels and the untrained network, on the first validation set

    # What it begins with
    settings.resume = ""  # go on from a checkpoint: its folder, or auto: the newest of the output folder, if any
    settings.pretrained = ""  # begin with the weights of a checkpoint or a .params file
    settings.class_map = ""  # which class of that is which here: a file, or same; see the README

    # What is reported and kept
    settings.models_root = "models"
    settings.frequent = 20  # updates between log lines
    settings.verify_every = 2000
    settings.save_every = 10000
    settings.checkpoint_every = 2000  # updates between checkpoints; 0: only when the job is asked to stop
    settings.checkpoints_kept = 2  # the newest ones
    return settings


loss = edict(
    arcface=edict(margins=(1.0, 0.5, 0.0)),
    cosface=edict(margins=(1.0, 0.0, 0.4)),
)

NETWORKS = ("r18", "r34", "r50", "r100", "r124", "r200", "rx50", "rx101", "mbf", "small")
network = edict({name: edict() for name in NETWORKS})

VALIDATION_SETS = ["lfw", "cfp_fp", "cfp_ff", "agedb_30", "calfw", "cplfw", "vgg2_fp"]


def _real(name, classes, lr_steps, max_update, val_targets=("lfw", "cfp_fp", "agedb_30")):
    return edict(
        data_name=name,
        num_classes=classes,
        lr_steps=list(lr_steps),
        max_update=max_update,
        val_targets=list(val_targets),
    )


def _synthetic(ten_thousands):
    """An id count to measure with: n x 10^4 identities, dummy images."""
    return edict(
        num_classes=ten_thousands * 10000,
        lr_steps=[20000, 28000],
        max_update=32000,
        checkpoint_every=0,  # of 4 GB for each million classes
        debug=True,
    )


dataset = edict(
    # Drawn faces, written by the first training on them (partial_fc/data/synthetic).
    demo=edict(
        data_root="data",
        data_name="demo",
        num_classes=1000,
        embedding_size=128,
        # 0.05 for 64 images. A long warm-up keeps arcface out of the cone that docs/collapse.md describes.
        lr=0.4,
        warmup_steps=400,
        max_grad_norm=5.0,
        lr_steps=[1600, 1900],
        max_update=2000,
        verify_every=500,
        save_every=2000,
        checkpoint_every=500,
        val_targets=["demo_val"],
        baselines=True,
    ),
    webface=_real("webface", 10575, (20000, 28000), 32000),
    emore=_real("emore", 85742, (100000, 160000), 180000),
    # The original has no schedule for ms1mv3: this is that of emore, which is of nearly the same size.
    ms1mv3=_real("ms1mv3", 93431, (100000, 160000), 180000),
    glint360k_8GPU=_real("glint360k", 360232, (200000, 400000, 500000, 550000), 600000, VALIDATION_SETS),
    # The original trains it at 0.1 too, with a global batch of 1024.
    glint360k_16GPU=edict(_real("glint360k", 360232, (200000, 280000, 360000), 400000, VALIDATION_SETS), lr=0.05),
)
for _count in (100, 1000, 2000, 3000, 10000):
    dataset[f"{_count}w"] = _synthetic(_count)


def generate_config(loss_name=None, dataset_name=None, network_name=None, changes=None):
    """Fills ``config`` in: defaults, presets, config.py, then ``changes``.

    Args:
        loss_name, dataset_name, network_name: a preset's name; None takes that of config.py or the default.
        changes: settings by name that win over everything, such as those of the command line.

    Returns:
        ``config``.

    Raises:
        SettingsError: an unknown name, with the nearest known one, or a value that cannot be.
    """
    settings = defaults()
    own = dict(user_config, **(changes or {}))
    given = {"loss": loss_name, "dataset": dataset_name, "network": network_name}
    own.update({kind: name for kind, name in given.items() if name is not None})
    for kind, presets in (("dataset", dataset), ("network", network), ("loss", loss)):
        merge(settings, choose(kind, own.get(kind, settings[kind]), presets))
    merge(settings, own)
    _check(settings)
    for name in ("data_root", "models_root", "rec", "bank_folder", "resume", "pretrained", "class_map"):
        if settings[name] and settings[name] not in WORDS:
            settings[name] = os.path.join(HERE, os.path.expanduser(settings[name]))
    config.clear()
    config.update(settings)
    return config


WORDS = ("auto", "same")  # no paths

POSITIVE = (
    "num_classes",
    "embedding_size",
    "batch_size",
    "image_size",
    "frequent",
    "verify_every",
    "save_every",
    "checkpoints_kept",
    "step_timeout",
)

NOT_NEGATIVE = (
    "lr",
    "backbone_lr",
    "memory_bank_lr",
    "max_grad_norm",
    "warmup_steps",
    "max_update",
    "checkpoint_every",
)


def _check(settings):
    for name in POSITIVE:
        if settings[name] < 1:
            raise SettingsError(f"{name} is {settings[name]}, but must be at least 1")
    if settings.host_timeout < 3:
        raise SettingsError(f"host_timeout is {settings.host_timeout}, but hosts answer once a second: at least 3")
    if settings.image_size % 16:
        raise SettingsError(f"image_size is {settings.image_size}, but must be a multiple of 16, such as 112")
    if not 0 < settings.sample_ratio <= 1:
        raise SettingsError(f"sample_ratio is {settings.sample_ratio}, but must be above 0 and at most 1")
    for name in NOT_NEGATIVE:
        if settings[name] < 0:
            raise SettingsError(f"{name} is {settings[name]}, but must not be negative")
    if settings.class_map and settings.resume in ("", "auto") and not settings.pretrained:
        raise SettingsError("class_map says which class of a checkpoint is which: give its path, resume=... too")
    if len(settings.margins) != 3 or not all(isinstance(m, (int, float)) for m in settings.margins):
        raise SettingsError(f"margins is {settings.margins}, but must be the three numbers (m1, m2, m3)")
    steps = settings.lr_steps
    if not all(isinstance(step, int) and step > 0 for step in steps) or steps != sorted(set(steps)):
        raise SettingsError(f"lr_steps is {settings.lr_steps}, but must be increasing numbers of updates")
    if not (settings.debug or settings.rec or settings.data_name):
        raise SettingsError(f"dataset {settings.dataset} has no images: set rec, or debug=True for dummy ones")


config.update(defaults())
