"""Every setting of both trainers with its default and bounds."""

from pathlib import Path
from typing import Any

import partial_fc.training
from partial_fc.data.label_runs import MAX_LABELS
from partial_fc.layer.center_states import CENTER_STATES
from partial_fc.layer.margins import MARGINS
from partial_fc.training.schedules import SCHEDULES
from partial_fc.training.trackers import TRACKERS
from partial_fc.utils.config import Schema, Setting
from partial_fc.utils.imports import declared_keys
from partial_fc.utils.options import OPTIONS, RATE

from .aliases import ALIASES
from .presets import NETWORKS, TRAINERS, dataset, loss, network

# Read from the source, because importing the tasks needs OpenCV.
TASKS = declared_keys(Path(partial_fc.training.__file__).parent / "tasks", "TASKS")
OPTIMIZERS = ("sgd", "adamw")  # names in partial_fc_torch.optimizers, which cannot be imported without PyTorch
# Names in partial_fc_torch.layer, which cannot be imported without PyTorch, either.
OBJECTIVES = ("softmax", "softmax_shared", "mlcd", "circle", "sphereface2", "uniface", "bce")
BACKENDS = ("", "gloo", "nccl")
GRADIENT_DTYPES = ("float32", "bfloat16", "float16")
NEW_CENTERS = ("random", "mean")
TEACHER_CENTERS = ("none", "initial", "frozen")


def _options(name: str, help: str, part: str = "", trainer: str = "") -> Setting:
    return Setting(name, "", help, options=OPTIONS.get(name, ()), part=part, trainer=trainer)


def _torch_setting(name: str, default: Any, help: str, **details: Any) -> Setting:
    return Setting(name, default, help, trainer="torch", **details)


# Setting -> names of it in other programs that are not near to its name.
_NAMES_ELSEWHERE = {
    "num_epoch": ("epochs", "num_epochs", "max_epochs", "max_epoch"),
    "max_update": ("steps", "max_steps", "num_steps", "iterations"),
    "lr": ("learning_rate",),
    "rec": ("data", "data_dir", "data_path", "train_data", "train_dir"),
    "dataset": ("dataset_name",),
    "val_targets": ("val", "val_data", "val_dir"),
    "network": ("model", "model_name", "arch", "backbone"),
    "decode_threads": ("workers",),
    "output": ("out", "output_dir", "save_dir"),
    "fp16 or bf16": ("amp",),
}

SETTINGS = Schema(
    "First settings",
    Setting("dataset", "demo", "data set, whose preset also sets the schedule", choices=dataset),
    Setting(
        "rec",
        "",
        "training set: a train.rec, its folder, or another form of set, see data.md (default: found by data_name)",
        path=True,
    ),
    Setting(
        "num_classes",
        0,
        "number of classes; 0 takes the number in the training set (default: set by dataset)",
        at_least=0,
        at_most=2**45,  # ranks exchange a label as two float32 digits
    ),
    Setting(
        "network",
        "small",
        f"backbone: {', '.join(NETWORKS['mxnet'])}; in PyTorch {', '.join(NETWORKS['torch'])}, any timm:name, "
        "or your own as package.module:function",
    ),
    Setting("loss", "arcface", "loss, whose preset sets the margin", choices=loss),
    Setting("batch_size", 64, "number of images per rank and step", at_least=1, at_most=65536),
    Setting("lr", 0.1, "learning rate for a batch of lr_reference_batch images", **RATE),
    Setting("num_epoch", 0, "number of epochs to train; 0 trains max_update updates", at_least=0, at_most=10**5),
    Setting("output", "", "folder that the run writes to (default: a folder in models_root)", path=True),
    Setting(
        "resume",
        "",
        "checkpoint to resume from; auto resumes from the newest one of the run folder, if there is one",
        path=True,
    ),
    "Data",
    Setting("task", "faces", "task to train: faces, items (a Dataset in rec), or your own as package.module:name"),
    _options(
        "task_options",
        "arguments of the task, such as cutout=40,jpeg_compression=30; --help task=NAME lists them",
        "task",
    ),
    Setting(
        "data_root", "/train_tmp", "folder that holds the data sets as <data_root>/<data_name>/train.rec", path=True
    ),
    _torch_setting(
        "labels",
        "",
        "file of the items' labels, used instead of the labels in the set: .npy, integers (N,) or (N, P), -1 for none",
        path=True,
    ),
    _torch_setting(
        "labels_per_item",
        0,
        "number of labels drawn anew from each item per epoch; 0 takes all",
        at_least=0,
        at_most=MAX_LABELS,
    ),
    Setting("data_name", "", "name of the data set's folder in data_root (default: set by dataset)"),
    Setting(
        "image_size", 112, "height and width of the input images, in pixels", at_least=16, at_most=1024, multiple_of=16
    ),
    Setting("shuffle", True, "shuffle the images in every epoch"),
    Setting(
        "rand_mirror",
        True,
        "flip images horizontally with probability 0.5, and add the flipped image's embedding in verification",
    ),
    Setting("follow_links", False, "follow symbolic links that lead out of the folder of a set"),
    Setting(
        "skip_bad_images",
        0,
        "number of unreadable images or items that each rank may skip before the training fails",
        at_least=0,
    ),
    Setting(
        "decode_threads",
        0,
        "decoding threads per rank; 0 uses the rank's share of the cores, up to 8",
        at_least=0,
        at_most=1024,
    ),
    Setting(
        "decode_processes",
        0,
        "processes per rank that read the items, instead of threads; 0 uses threads",
        at_least=0,
        at_most=256,
    ),
    _torch_setting(
        "heads",
        "",
        "TOML, JSON or YAML file with several heads, each with its own set, classes and loss, over one backbone",
        path=True,
    ),
    Setting("debug", False, "train on dummy images instead of the data set"),
    Setting(
        "val_targets",
        [],
        "names of the validation sets, read from <name>.bin beside train.rec; with task=items, Datasets as "
        "package.module:name",
        item=str,
    ),
    Setting("baselines", False, "also verify raw pixels and the untrained network on the first validation set"),
    "Network",
    Setting("embedding_size", 512, "dimension of the embeddings", at_least=1, at_most=65536),
    _options("network_options", "arguments of the network, such as dropout=0.4"),
    Setting("fp16", False, "compute the backbone in float16 (GPUs only); all else, and saved files, in float32"),
    _torch_setting("bf16", False, "compute the backbone in bfloat16; all else, and saved files, in float32"),
    "Loss",
    Setting("loss_s", 64.0, "scale s of the logits", at_least=1, at_most=10**4),
    _torch_setting(
        "margin", "combined", f"margin: {', '.join(MARGINS)}, or your own as package.module:name (default: set by loss)"
    ),
    _options(
        "margin_options",
        "arguments of the margin, such as m1=1.0,m2=0.3,m3=0.2,interclass_filtering_threshold=0.4 for combined; in "
        "PyTorch also one value per epoch, such as m2=[0.0,0.3], or a ramp of [epoch,value] pairs",
        "margin",
    ),
    _torch_setting(
        "objective",
        "softmax",
        f"loss of an item from its target and negative logits: {', '.join(OBJECTIVES)}, or your own as "
        "package.module:name",
    ),
    _options("objective_options", "arguments of the objective, such as weight=0.7", "objective", trainer="torch"),
    "Class centers",
    Setting(
        "sample_ratio",
        1.0,
        "fraction of the class centers sampled per step, or one per epoch, as in 0.1,0.1,1.0; 0 samples only the "
        "classes of the batch",
        at_least=0,
        at_most=1,
        by_epoch=True,
    ),
    _torch_setting(
        "sampling",
        "uniform",
        "how negatives are drawn: uniform, frequency (in proportion to the items of a class), or a .npy file with a "
        "positive weight for each class",
        path=True,
    ),
    Setting("sampling_correction", False, "weight each sampled negative class by 1 / its sampling probability"),
    Setting(
        "bank_on_gpu", True, "store the class centers and their momentum on the GPU; False stores them in host memory"
    ),
    Setting("bank_folder", "", "folder in which to store the class centers and their momentum as files", path=True),
    _torch_setting(
        "center_optimizer",
        "sgd",
        "optimizer of the class centers: sgd, adamw, adagrad, or your own as package.module:name",
    ),
    _options("layer_options", "arguments of the classification layer, such as dtype=bfloat16"),
    "Optimization",
    _torch_setting(
        "optimizer",
        "sgd",
        "optimizer of the backbone: sgd, adamw, a class of torch.optim, or your own as package.module:name",
    ),
    _options("optimizer_options", "arguments of the backbone's optimizer, such as eps=1e-6", "optimizer"),
    Setting("momentum", 0.9, "momentum of SGD, for the backbone and the class centers", at_least=0, below=1),
    Setting("wd", 5e-4, "weight decay of the backbone and the class centers", at_least=0, at_most=1),
    Setting(
        "max_grad_norm", 0.0, "norm to which the backbone's gradients are clipped; 0 disables clipping", at_least=0
    ),
    _torch_setting(
        "gradient_acc",
        1,
        "number of micro-batches of batch_size whose gradients are accumulated per update",
        at_least=1,
        at_most=65536,
    ),
    _torch_setting(
        "part_rates",
        [],
        "factors of the learning rate by part of the backbone, such as conv1=0,layer1=0.1; 0 freezes a part",
        item=str,
    ),
    _torch_setting(
        "ema_decay",
        0.0,
        "decay of the moving average of the backbone's weights, which is also verified and saved; 0 disables it",
        at_least=0,
        below=1,
    ),
    _torch_setting(
        "average_checkpoints",
        0,
        "number of last epochs; the final backbone is the mean of the weights at their ends; 0 takes the last weights",
        at_least=0,
    ),
    Setting("seed", 0, "seed of all random numbers", at_least=0, below=2**31),
    "Learning rate schedule",
    Setting("lr_reference_batch", 512, "batch size that lr refers to (linear scaling); 0 disables scaling", at_least=0),
    Setting(
        "schedule",
        "constant",
        f"learning rate schedule: {', '.join(SCHEDULES)}, or your own as package.module:name (default: set by dataset)",
    ),
    _options("schedule_options", "arguments of the schedule, such as epochs=[8,14] or power=2", "schedule"),
    Setting("warmup_steps", 0, "number of updates of linear warm-up", at_least=0),
    Setting("warmup_epoch", -1, "number of epochs of warm-up; -1 disables it", at_least=-1),
    Setting("max_update", 32000, "number of updates to train, unless num_epoch is set", at_least=0, at_most=10**9),
    "Processes",
    _torch_setting(
        "backend", "", "backend of torch.distributed (default: nccl on GPUs, otherwise gloo)", choices=BACKENDS
    ),
    _torch_setting(
        "gradient_dtype",
        "float32",
        "data type in which the ranks average the backbone's gradients; float16 requires fp16",
        choices=GRADIENT_DTYPES,
    ),
    Setting("step_timeout", 600, "seconds without a finished step after which the job ends", at_least=1, at_most=10**9),
    Setting(
        "host_timeout", 15, "seconds of silence from another host after which the job ends", at_least=3, at_most=10**9
    ),
    "Pretrained weights",
    Setting(
        "pretrained",
        "",
        "weights to start from: a checkpoint, a .params file or (PyTorch) a state_dict file",
        path=True,
    ),
    Setting(
        "class_map",
        "",
        "also load the pretrained class centers: file that maps their classes to this set's, or same if they are equal",
        path=True,
    ),
    Setting(
        "new_centers",
        "random",
        "initial class centers of classes that are not loaded: random, or the mean embedding of the class's images",
        choices=NEW_CENTERS,
    ),
    "Distillation",
    _torch_setting(
        "teacher",
        "",
        "trained model to learn embeddings from: output folder of a training, state_dict file, or ONNX file",
        path=True,
    ),
    _torch_setting(
        "teacher_weight", 100.0, "factor of the mean of 1 - cosine to the teacher's embeddings", above=0, at_most=10**4
    ),
    _torch_setting(
        "softmax_weight",
        1.0,
        "factor of the backbone's gradient from the softmax beside a teacher; 0 learns from the teacher alone",
        at_least=0,
        at_most=10**4,
    ),
    _torch_setting(
        "teacher_centers",
        "none",
        "class centers of the teacher's training, of the same classes: none, the initial centers, or frozen",
        choices=TEACHER_CENTERS,
    ),
    "Output",
    Setting("models_root", "models", "folder that holds the run folders <network>-<loss>-<dataset>", path=True),
    Setting(
        "trackers",
        ["tensorboard"],
        f"metric loggers: {', '.join(TRACKERS)}, or your own as package.module:name",
        item=str,
    ),
    _options("tracker_options", "arguments of the metric loggers, such as project=faces,entity=me", "trackers"),
    Setting("log_every", 20, "number of updates between two log lines", at_least=1),
    Setting("verify_every", 2000, "number of updates between two verifications", at_least=1),
    Setting("save_every", 10000, "number of updates between two saves of the model and the class centers", at_least=1),
    Setting(
        "checkpoint_every",
        -1,
        "number of updates between two checkpoints; 0 never saves by updates, -1 saves every 2000 updates, or on GPUs "
        "about every 10 minutes",
        at_least=-1,
    ),
    _options("checkpoint_options", "further options of the checkpoints, such as minutes=30"),
    hints={
        **{name: f"set {setting}" for setting, names in _NAMES_ELSEWHERE.items() for name in names},
        "num_image": "remove it, the number of images is read from the data set",
        "dali": "remove it, all images are read by the same code",
        "dali_aug": "set task_options=color_jittering=0.2,jpeg_compression=30,cutout=40 or the like",
        "save_all_states": "remove it, checkpoints have all states",
        "using_wandb": "set trackers=tensorboard,wandb",
        **dict.fromkeys(("wandb_entity", "wandb_project", "suffix_run_name", "save_artifacts"), "set tracker_options"),
        **dict.fromkeys(("wandb_log_all", "wandb_resume"), "remove it"),
        "wandb_key": "set the environment variable WANDB_API_KEY",
    },
    alternatives=({"num_epoch": 0, "max_update": None}, {"warmup_epoch": -1, "warmup_steps": 0}),
    aliases=ALIASES,
)

# Settings that take a name, or a user's own object as package.module:name -> the names.
OBJECTS = {
    "optimizer": OPTIMIZERS,
    "center_optimizer": CENTER_STATES,
    "network": network,
    "objective": OBJECTIVES,
    "task": TASKS,
    "trackers": TRACKERS,
}


def describe_settings(trainer: str = "mxnet") -> str:
    """Returns the text of ``--help`` about the settings."""
    return SETTINGS.describe(TRAINERS[trainer].defaults)
