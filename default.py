"""Every setting of both trainers with its default and bounds, and the presets of losses, data sets and networks.

``from default import config`` gives the settings. Later values win: the defaults here, those of a trainer, the presets
that ``dataset``, ``network`` and ``loss`` name, config.py, and ``name=value`` on the command line. A relative path
starts at the folder of this file.
"""

import os
from itertools import chain
from typing import Any

from easydict import EasyDict as edict

from partial_fc.data.sources.forms import is_name, set_path
from partial_fc.layer.center_states import CENTER_STATES
from partial_fc.layer.margins import MARGINS
from partial_fc.training.schedules import LARGEST_FACTOR, SCHEDULES, SETTING_OF, tabulate_rates
from partial_fc.training.settings_checks import Known, check_loss, check_settings
from partial_fc.training.trackers import TRACKERS
from partial_fc.utils.config import Schema, Setting, read_settings
from partial_fc.utils.imports import declared_keys, refuse_code
from partial_fc.utils.user_code import errors_of

with errors_of("config.py failed"):
    from config import config as user_config

HERE = os.path.dirname(os.path.abspath(__file__))

config = edict()  # filled in below with the defaults, and by generate_config with a whole configuration

# The MXNet trainer has those of the margin "combined".
loss = edict(
    arcface=edict(margin="combined", margin_options="", margins=(1.0, 0.5, 0.0)),
    cosface=edict(margin="combined", margin_options="", margins=(1.0, 0.0, 0.4)),
    **{name: edict(margin=name, margin_options="") for name in MARGINS[1:]},
    # Taken where the user names a margin and no loss.
    own=edict(margin="", margin_options="", margins=(1.0, 0.5, 0.0)),
)

# By trainer. The MobileFaceNet that MXNet calls mbf is mobilefacenet in PyTorch, where mbf is that of arcface_torch.
NETWORKS = {
    "mxnet": ("r18", "r34", "r50", "r100", "r124", "r200", "rx50", "rx101", "mbf", "small"),
    "torch": declared_keys(os.path.join(HERE, "pytorch", "partial_fc_torch", "backbones"), "NETWORKS"),
}
network = edict({name: edict() for names in NETWORKS.values() for name in names})

TASKS = declared_keys(os.path.join(HERE, "partial_fc", "training", "tasks"), "TASKS")  # which need OpenCV
VALIDATION_SETS = ["lfw", "cfp_fp", "cfp_ff", "agedb_30", "calfw", "cplfw", "vgg2_fp"]


def _real(name, classes, val_targets=("lfw", "cfp_fp", "agedb_30"), **more):
    return edict(data_name=name, num_classes=classes, val_targets=list(val_targets), **more)


def _synthetic(ten_thousands):
    """A number of identities to measure speed and memory with: n x 10^4, on dummy images."""
    return edict(
        num_classes=ten_thousands * 10000,
        lr_steps=[20000, 28000],
        max_update=32000,
        checkpoint_every=0,  # of 4 GB for each million classes
        debug=True,
    )


dataset = edict(
    # Synthetic faces, written by the first training on them (partial_fc/data/synthetic).
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
    own=edict(),  # taken where the user names the images and no dataset: nothing but the defaults
    # Characters in the typefaces of Debian's packages, written by `python -m examples.glyphs`; see docs/experiment.md.
    glyphs=edict(
        data_root="data",
        data_name="glyphs",
        num_classes=20000,
        image_size=64,
        rand_mirror=False,
        embedding_size=128,
        warmup_steps=1000,
        max_grad_norm=5.0,
        lr_epochs=[4],
        num_epoch=4,
        val_targets=["unseen_characters", "unseen_typefaces"],
    ),
    # Of CASIA-WebFace's 10,575 identities, the train.rec that insightface published has 10,572.
    webface=_real("webface", 10572, lr_steps=[20000, 28000], max_update=32000),
    emore=_real("emore", 85742, lr_steps=[100000, 160000], max_update=180000),
    # The original has no schedule for ms1mv3: this is that of emore, which is of nearly the same size.
    ms1mv3=_real("ms1mv3", 93431, lr_steps=[100000, 160000], max_update=180000),
    glint360k=_real("glint360k", 360232, lr_epochs=[8, 12, 15, 18], num_epoch=20),
    glint360k_8GPU=_real(
        "glint360k", 360232, VALIDATION_SETS, lr_steps=[200000, 400000, 500000, 550000], max_update=600000
    ),
    # The original trains it at 0.1 too, with a global batch of 1024.
    glint360k_16GPU=_real(
        "glint360k", 360232, VALIDATION_SETS, lr_steps=[200000, 280000, 360000], max_update=400000, lr=0.05
    ),
)
# Few of these characters, for the recipes of the glyphs: see docs/recipes.md.
dataset.glyphs500 = edict({**dataset.glyphs, "data_name": "glyphs500", "num_classes": 500})
for _name, _classes in (("ms1m-retinaface-t1", 93431), ("ms1m-retinaface-t2", 91180)):
    dataset[_name] = _real(_name, _classes, lr_epochs=[11, 17, 22], num_epoch=25)
for _count in (100, 1000, 2000, 3000, 10000):
    dataset[f"{_count}w"] = _synthetic(_count)

PRESETS = {"dataset": dataset, "network": network, "loss": loss}

# What the PyTorch trainer, which follows arcface_torch (insightface, commit fb5b42fe), sets otherwise than the presets
# above, which the MXNet trainer follows as the original: defaults, folders and schedules. The classes are the same, so
# that one trainer resumes from the other's checkpoints.
TRAINERS = {
    "mxnet": edict(defaults=edict(), dataset=edict()),
    "torch": edict(
        defaults=edict(log_every=50, max_grad_norm=5.0),
        dataset=edict(
            emore=edict(data_name="faces_emore", val_targets=["lfw"], lr_epochs=[8, 14], num_epoch=16),
            ms1mv3=edict(data_name="ms1m-retinaface-t1", lr_epochs=[11, 17, 22], num_epoch=25),
            webface=edict(data_name="faces_webface_112x112", lr_epochs=[20, 28, 32], num_epoch=34, dropout=0.4),
        ),
    ),
}

# The names in partial_fc_mxnet.symbol, which needs MXNet; empty stands for the network's own.
ACTIVATIONS = ("", "prelu", "relu", "sigmoid", "softrelu", "softsign", "tanh")
HEADS = ("", "FC", "E", "GAP", "GDC")
DECAY_ON = ("all", "weights")  # those of partial_fc_torch.optimizers, which needs PyTorch
OPTIMIZERS = ("sgd", "adamw")
BACKENDS = ("", "gloo", "nccl")
GRADIENT_DTYPES = ("float32", "bfloat16", "float16")
LAYER_KERNELS = ("auto", "torch", "triton")
NEW_CENTERS = ("random", "mean")
RATE: dict[str, Any] = {"at_least": 0, "at_most": LARGEST_FACTOR}
LAYER_DTYPES = ("auto", "float32", "tf32", "bfloat16", "float16")

SETTINGS = Schema(
    "Presets",
    Setting("dataset", "demo", "data set with its schedule", choices=dataset),
    Setting("loss", "arcface", "loss with its margins", choices=loss),
    Setting(
        "network",
        "small",
        f"backbone: {', '.join(NETWORKS['mxnet'])}; in PyTorch {', '.join(NETWORKS['torch'])}, any timm:name, "
        "or your own as package.module:function",
    ),
    "Layer",
    Setting("embedding_size", 512, "dimensions of an embedding", at_least=1, at_most=65536),
    Setting(
        "sample_ratio",
        1.0,
        "share of a rank's centers in a step, as 0.1,0.1,1.0 by epoch; 0: those of the batch alone",
        at_least=0,
        at_most=1,
        alias="sample_rate",
        by_epoch=True,
    ),
    Setting("sampling_correction", False, "count each sampled negative 1 / its probability times"),
    Setting("bank_on_gpu", True, "False: keep centers and momentum in host memory, not in the GPU's"),
    Setting("bank_folder", "", "keep centers and momentum in files of this folder", path=True),
    Setting(
        "tile_classes",
        0,
        "classes that the layer processes at a time; 0: what suits the device",
        at_least=0,
        at_most=2**31,
    ),
    Setting(
        "center_optimizer",
        "sgd",
        "optimizer of the class centers: sgd, adamw, adagrad, or your own as package.module:name",
        trainer="torch",
    ),
    Setting(
        "logits_cache_mb",
        -1,
        "MiB of logits kept for backward; -1: 256, and on PyTorch's GPUs what is free",
        at_least=-1,
        at_most=2**20,
    ),
    Setting(
        "layer_dtype",
        "auto",
        "type of the layer's products; auto: tf32 on GPUs that have it, else float32",
        choices=LAYER_DTYPES,
        trainer="torch",
    ),
    Setting(
        "layer_kernel",
        "auto",
        "what computes the layer: operators of PyTorch, or fused kernels; auto: these on GPUs, if they serve it",
        choices=LAYER_KERNELS,
        trainer="torch",
    ),
    Setting("loss_s", 64.0, "scale s of the logits", at_least=1, at_most=10**4),
    Setting("margin", "combined", f"{', '.join(MARGINS)}, or package.module:name; set by loss", trainer="torch"),
    Setting("margin_options", "", "of the margin, such as m=0.4,h=0.333; empty: its own", trainer="torch"),
    Setting("margins", (1.0, 0.5, 0.0), "(m1, m2, m3) of the margin combined, set by loss", item=float, length=3),
    Setting(
        "interclass_filtering_threshold", 0.0, "leave out negatives of a higher cosine; 0: none", at_least=0, below=1
    ),
    "Training",
    Setting(
        "optimizer",
        "sgd",
        "of the backbone: sgd, adamw, or a class of torch.optim or your own as package.module:name",
        trainer="torch",
    ),
    Setting("optimizer_options", "", "of the optimizer, such as eps=1e-6; empty: its own", trainer="torch"),
    Setting(
        "decay_on",
        "all",
        "parameters of the backbone with weight decay; weights: not norms, biases, positions",
        choices=DECAY_ON,
        trainer="torch",
    ),
    Setting(
        "part_rates",
        [],
        "factor of the learning rate by part of the backbone, as conv1=0,layer1=0.1; 0 freezes it",
        item=str,
        trainer="torch",
    ),
    Setting("batch_size", 64, "images of one rank in a step, or a micro-batch", at_least=1, at_most=65536),
    Setting(
        "gradient_acc",
        1,
        "micro-batches of batch_size in an update, which equals one with all of their images",
        at_least=1,
        at_most=65536,
        trainer="torch",
    ),
    Setting("lr", 0.1, "learning rate for lr_reference_batch images", **RATE),
    Setting(
        "lr_reference_batch",
        512,
        "images of an update that lr is for, proportional for others; 0: lr is for any batch",
        at_least=0,
    ),
    Setting("backbone_lr", 0.0, "learning rate of the backbone for any batch; 0: follow lr", **RATE),
    Setting("memory_bank_lr", 0.0, "learning rate of the class centers for any batch; 0: follow lr", **RATE),
    Setting(
        "schedule",
        "",
        f"of both rates: {', '.join(SCHEDULES)}, or package.module:name; empty: by lr_steps, lr_epochs or lr_func",
    ),
    Setting("schedule_options", "", "of the schedule, such as power=2; empty: its own"),
    Setting("warmup_steps", 0, "updates over which both rates grow linearly from 0", at_least=0),
    Setting("warmup_epoch", -1, "epochs over which both rates grow; -1: none", at_least=-1),
    Setting(
        "warmup",
        "",
        "growth in warmup_epoch; empty: quadratic with steps and epochs, otherwise linear",
        choices=("", "linear", "quadratic"),
    ),
    Setting("max_grad_norm", 0.0, "clip the backbone's gradients to this global norm; 0: do not clip", at_least=0),
    Setting("lr_steps", [], "updates after which both rates are divided by 10, set by dataset", item=int, at_least=1),
    Setting("lr_epochs", [], "epochs, from 1, before which both are divided by 10", item=int, at_least=1),
    Setting("lr_func", [], "factor of the rates by epoch, with no warm-up", item=float, **RATE, function=True),
    Setting("max_update", 32000, "length of the training in updates, set by dataset", at_least=0, at_most=10**9),
    Setting("num_epoch", 0, "epochs to train; 0: max_update decides", at_least=0, at_most=10**5),
    Setting("momentum", 0.9, "momentum of backbone and centers, with sgd", at_least=0, below=1),
    Setting("wd", 5e-4, "weight decay of backbone and centers", at_least=0, at_most=1, alias="weight_decay"),
    Setting(
        "ema_decay",
        0.0,
        "decay of a moving average of the backbone's weights, verified and saved beside it; 0: none",
        at_least=0,
        below=1,
        trainer="torch",
    ),
    Setting("seed", 0, "seed of everything random", at_least=0, below=2**31),
    Setting("fp16", False, "compute the backbone in float16 (GPUs only); head, layer and files stay float32"),
    Setting("bf16", False, "compute the backbone in bfloat16; head, layer and files stay float32", trainer="torch"),
    Setting(
        "gradient_dtype",
        "float32",
        "type in which the ranks average the gradients of the backbone; float16 with fp16 only",
        choices=GRADIENT_DTYPES,
        trainer="torch",
    ),
    Setting("compile_backbone", False, "train what torch.compile makes of the backbone", trainer="torch"),
    Setting("backend", "", "of torch.distributed; empty: nccl on GPUs, else gloo", choices=BACKENDS, trainer="torch"),
    Setting("step_timeout", 600, "seconds without a step that end the job", at_least=1, at_most=10**9),
    Setting("host_timeout", 15, "seconds of silence of another host that end the job", at_least=3, at_most=10**9),
    "Backbone",
    Setting("net_se", False, "squeeze-and-excitation in the residual units", trainer="mxnet"),
    Setting("net_act", "", "activation; empty: the network's own", choices=ACTIVATIONS, trainer="mxnet"),
    Setting("net_output", "", "head, E is FC with dropout; empty: the network's own", choices=HEADS, trainer="mxnet"),
    Setting("dropout", 0.0, "share of features dropped before the head", at_least=0, below=1, trainer="torch"),
    Setting(
        "activation_checkpointing",
        False,
        "compute the activations of each block again in the backward pass: less memory, more time",
        trainer="torch",
    ),
    Setting("bn_mom", 0.9, "momentum of the moving averages of batch norm", at_least=0, below=1, trainer="mxnet"),
    "Data",
    Setting("task", "faces", "faces; items, of a Dataset in rec; or your own task as package.module:name"),
    Setting("task_options", "", "of the task, as path=words.txt,length=32; --help task=... lists them; empty: its own"),
    Setting("data_root", "/train_tmp", "folder of the data sets: <data_root>/<data_name>/train.rec", path=True),
    Setting("data_name", "", "folder of the data set below data_root, set by dataset"),
    Setting("rec", "", "a train.rec or its folder, or another set (data.md); empty: that of data_name", path=True),
    Setting("num_classes", 0, "identities, set by dataset", at_least=1, at_most=2**45),  # two float32 digits of a label
    Setting("image_size", 112, "side of an image in pixels", at_least=16, at_most=1024, multiple_of=16),
    Setting("shuffle", True, "draw a new order of the images in every epoch"),
    Setting("rand_mirror", True, "mirror every second image; add the mirror image's embedding in verification"),
    Setting("cutout", 0, "side in pixels of a square erased from every second image", at_least=0, alias="cutoff"),
    Setting("color_jittering", 0.0, "share by which brightness, contrast, color vary", at_least=0, at_most=1),
    Setting("jpeg_compression", 0, "lowest JPEG quality of every second image; 0: as it is", at_least=0, at_most=100),
    Setting("min_images_per_class", 0, "leave out identities with fewer images", at_least=0, alias="images_filter"),
    Setting("follow_links", False, "read also images that a set reaches through links out of its folder"),
    Setting("skip_bad_images", 0, "bad items that each rank skips before one ends the training", at_least=0),
    Setting("decode_threads", 0, "per rank; 0: its share of the host's cores, up to 8", at_least=0, at_most=1024),
    Setting("decode_processes", 0, "per rank, which read in place of threads; 0: threads", at_least=0, at_most=256),
    Setting("debug", False, "dummy images instead of the data set", alias="dummy_data"),
    Setting("val_targets", [], "validation sets: <name>.bin beside train.rec", item=str),
    Setting("baselines", False, "also verify raw pixels and the untrained network, on the first validation set"),
    "Start",
    Setting("resume", "", "continue from this checkpoint; auto: from the newest of the run folder, if any", path=True),
    Setting("pretrained", "", "start with these weights: checkpoint, .params or (PyTorch) state_dict file", path=True),
    Setting("class_map", "", "also take its class centers: file that maps the classes, or same", path=True),
    Setting(
        "new_centers",
        "random",
        "centers that are not taken: random, or the mean embeddings of their classes by the backbone",
        choices=NEW_CENTERS,
    ),
    "Output",
    Setting("models_root", "models", "folder of the run folders <network>-<loss>-<dataset>", path=True),
    Setting("output", "", "folder of the run, instead of one in models_root", path=True),
    Setting(
        "trackers",
        ["tensorboard"],
        f"what gets the figures: {', '.join(TRACKERS)}, or your own as package.module:name",
        item=str,
    ),
    Setting("tracker_options", "", "of the trackers, such as project=faces,entity=me; empty: their own"),
    Setting("log_every", 20, "updates between log lines", at_least=1, alias="frequent"),
    Setting("verify_every", 2000, "updates between verifications", at_least=1),
    Setting("save_every", 10000, "updates between saves of model and centers", at_least=1),
    Setting(
        "checkpoint_every",
        -1,
        "updates between checkpoints; 0: see checkpoint_minutes; -1: 2000, and on GPUs about 10 minutes",
        at_least=-1,
    ),
    Setting("checkpoint_minutes", 0.0, "minutes between them; both 0: only when asked to stop", at_least=0),
    Setting("checkpoints_kept", 2, "checkpoints that are kept, the newest ones", at_least=1),
    hints={
        "kept_mb": "its name is now 'logits_cache_mb'",
        "num_image": "remove it, the number of images is read from the data set",
        "margin_list": "its name is 'margins'",
        "verbose": "its name is 'verify_every'",
        "dali": "remove it, all images are read by the same code",
        "dali_aug": "set color_jittering, jpeg_compression and cutout",
        "num_workers": "its name is 'decode_threads'",
        "save_all_states": "remove it, checkpoints have all states",
        "using_wandb": "set trackers=tensorboard,wandb",
        **dict.fromkeys(("wandb_entity", "wandb_project", "suffix_run_name", "save_artifacts"), "set tracker_options"),
        **dict.fromkeys(("wandb_log_all", "wandb_resume"), "remove it"),
        "wandb_key": "set the environment variable WANDB_API_KEY",
    },
    alternatives=(
        {"num_epoch": 0, "max_update": None},
        {"warmup_epoch": -1, "warmup_steps": 0},
        {"lr_epochs": [], "lr_steps": [], "lr_func": [], "schedule": ("", *SETTING_OF)},
    ),
)

# What a saved preset stands for beside its settings.
OF_PRESET = {"dataset": ("rec",), "network": (), "loss": ("interclass_filtering_threshold",)}
KEYWORDS = ("", "auto", "same")  # values of path settings that are not paths

# Settings that take a name, or an object of the user's as package.module:name.
OBJECTS = {
    "optimizer": OPTIMIZERS,
    "center_optimizer": CENTER_STATES,
    "network": network,
    "task": TASKS,
    "trackers": TRACKERS,
}
KNOWN = Known(SETTINGS.defaults(), loss, NETWORKS, OBJECTS)


def defaults() -> edict:
    """A fresh copy of every setting with its default."""
    return edict(SETTINGS.defaults())


def describe_settings(trainer="mxnet") -> str:
    """The text of ``--help`` on the settings."""
    return SETTINGS.describe(TRAINERS[trainer].defaults)


def generate_config(
    loss_name=None,
    dataset_name=None,
    network_name=None,
    changes=None,
    config_file=None,
    trainer="mxnet",
    recipe=None,
    trust_code=False,
):
    """Fills ``config``: defaults, presets, config.py, ``recipe`` or ``config_file``, then ``changes``.

    Args:
        loss_name, dataset_name, network_name: Names of presets; None takes those of the other layers.
        changes: Settings by name that win over all others, such as those of the command line.
        config_file: Path of a settings.json, or None. Its values win over presets and config.py. If ``changes`` or an
            argument names another preset, what the two presets set is not taken from the file.
        trainer: "mxnet" or "torch", see TRAINERS.
        recipe: Settings by name in place of those of a ``config_file``, or None.
        trust_code: Whether a ``config_file`` may name code that nothing else names, see refuse_code.

    Returns:
        ``config``.

    Raises:
        SettingsError: A name is unknown, or a value is not allowed.
    """
    given = {"loss": loss_name, "dataset": dataset_name, "network": network_name}
    own = dict(changes or {}, **{kind: name for kind, name in given.items() if name is not None})
    path = absolute(config_file) if config_file else ""
    sources = (("config.py", user_config), (path, {**(recipe or {}), **read_saved(path)}), ("", own))
    read = [SETTINGS.read(source, values, trainer) for source, values in sources]
    typed = {*user_config, *own}
    named = typed.union(sources[1][1])  # without the defaults, which `read` adds, of what a value replaces
    user, saved, own = read
    names = {**defaults(), **user, **saved, **own}
    if "dataset" not in named and (names["rec"] or names["data_name"] or names["task"] != "faces"):
        names["dataset"] = own["dataset"] = "own"
    if "loss" not in named and "margin" in named:
        names["loss"] = own["loss"] = "own"
    check_loss(names["loss"], trainer, KNOWN)
    drop_replaced(saved, names, trainer)
    if path and not trust_code:
        refuse_code(path, {name: value for name, value in saved.items() if name not in own}, user, recipe or {})
    presets = (preset(kind, names[kind], trainer) for kind in PRESETS)
    settings = merge(TRAINERS[trainer].defaults, *presets, user, saved, own)
    complete(settings)
    check_settings(settings, named, typed, preset("dataset", names["dataset"], trainer), trainer, KNOWN)
    config.clear()
    config.update(settings)
    return config


def drop_replaced(saved, names, trainer):
    """Takes out of saved settings what belongs to a preset or a margin that is not the one in ``names``."""
    for kind in PRESETS:
        if saved.get(kind, names[kind]) != names[kind]:
            presets = (preset(kind, name, trainer) for name in (saved[kind], names[kind]))
            for name in (*chain.from_iterable(presets), *OF_PRESET[kind]):
                saved.pop(name, None)
    if saved.get("margin", names["margin"]) != names["margin"]:
        for name in ("margins", "margin_options", "interclass_filtering_threshold"):
            saved.pop(name, None)


def merge(*layers):
    """All settings, of which later layers win; a lr_func takes the place of an earlier warm-up, too."""
    settings = dict(defaults())
    for values in layers:
        if values.get("lr_func"):
            settings.update(warmup_epoch=-1, warmup_steps=0)
        settings.update(values)
    return settings


def preset(kind, name, trainer):
    """The settings of a preset for this trainer."""
    of_trainer = TRAINERS[trainer].dataset.get(name, {}) if kind == "dataset" else {}
    layers = (SETTINGS.read(f"preset {name}", values, trainer) for values in (PRESETS[kind].get(name, {}), of_trainer))
    return dict(chain.from_iterable(values.items() for values in layers))


def read_saved(path):
    """The content of a settings.json, without the max_update that its num_epoch came to; {} for no path."""
    saved = read_settings(path) if path else {}
    return {name: value for name, value in saved.items() if name != "max_update" or not saved.get("num_epoch")}


def complete(settings):
    """Replaces a user's lr_func by its values, relative paths by absolute ones, and a folder of ``rec`` by its file."""
    if callable(settings["lr_func"]):
        factors = tabulate_rates(settings["lr_func"], settings["num_epoch"])
        settings["lr_func"] = SETTINGS.settings["lr_func"].check(factors)
    for name, setting in SETTINGS.settings.items():
        if setting.path and settings[name] not in KEYWORDS and not (name == "rec" and is_name(settings[name])):
            settings[name] = absolute(settings[name])
    rec = settings["rec"]
    settings["rec"] = set_path(rec) if rec and not is_name(rec) else rec


def absolute(path):
    """The path, where a relative one starts at the folder of this file and ``~`` is a home."""
    return os.path.normpath(os.path.join(HERE, os.path.expanduser(path)))


config.update(defaults())
