"""Every setting of both trainers with its default and bounds."""

from pathlib import Path
from typing import Any

import partial_fc.training
from partial_fc.layer.center_states import CENTER_STATES
from partial_fc.layer.margins import MARGINS
from partial_fc.training.schedules import LARGEST_FACTOR, SCHEDULES, SETTING_OF
from partial_fc.training.trackers import TRACKERS
from partial_fc.utils.config import Schema, Setting
from partial_fc.utils.imports import declared_keys

from .checks import Known
from .presets import NETWORKS, TRAINERS, dataset, loss, network

TASKS = declared_keys(Path(partial_fc.training.__file__).parent / "tasks", "TASKS")  # which need OpenCV
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

# Settings that take a name, or an object of the user's as package.module:name.
OBJECTS = {
    "optimizer": OPTIMIZERS,
    "center_optimizer": CENTER_STATES,
    "network": network,
    "task": TASKS,
    "trackers": TRACKERS,
}
KNOWN = Known(SETTINGS.defaults(), loss, NETWORKS, OBJECTS)


def describe_settings(trainer: str = "mxnet") -> str:
    """The text of ``--help`` on the settings."""
    return SETTINGS.describe(TRAINERS[trainer].defaults)
