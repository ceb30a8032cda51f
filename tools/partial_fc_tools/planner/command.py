"""Prints the memory of a rank, the traffic of a training step, and whether the training fits into the GPUs.

The class centers are divided among the ranks; every rank has the whole backbone. With peak rates, from a data sheet or
measured, it also prints a lower bound for the time of a step (docs/scale.md).
"""

import argparse
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from partial_fc.layer.center_states import CENTER_STATES
from partial_fc.layer.margins import MARGINS
from partial_fc.utils.cli import number_above_0, whole_number
from partial_fc.utils.config import join_options, read_settings, split_options
from partial_fc.utils.imports import TRUST, TRUST_HELP, refuse_code
from partial_fc.utils.options import CENTER_DTYPES, UNIT_COPIES, options_of

from . import Case, plan
from .backbones import IMAGE_SIZE
from .case import BACKBONE_STATES, BANKS, DEVICES, GRADIENT_BYTES, TRAINERS
from .report import as_numbers, as_text
from .roofline import Rates, least_times
from .verdict import judge

EXAMPLE = "--classes 10000000 --ranks 8 --ratio 0.1 --network r50 --fp16 --gpu-memory 10.76"
RATES = {  # option of a rate -> (field of Rates, one unit of the option, help)
    "tflops": ("backbone_flops", 1e12, "Tflop/s of matrix products in the backbone's precision"),
    "layer_tflops": ("layer_flops", 1e12, "Tflop/s of the layer's matrix products (default: --tflops)"),
    "memory_gbs": ("memory_bandwidth", 1e9, "memory bandwidth of the device in GB/s"),
    "bus_gbs": ("bus_bandwidth", 1e9, "bandwidth between host and GPU in GB/s, one way"),
    "network_gbit": ("network_bandwidth", 1e9 / 8, "bandwidth of the slowest link between ranks in Gbit/s, one way"),
}
SETTINGS = {  # field of Case -> setting with the same meaning
    "classes": "num_classes",
    "batch": "batch_size",
    "embedding": "embedding_size",
    "optimizer": "center_optimizer",
    "backbone_optimizer": "optimizer",
    **{name: name for name in ("network", "fp16", "margin")},
    **{name: name for name in ("gradient_dtype", "gradient_acc", "task", "task_options", "heads")},
}
# Fields of Case that layer_options has
LAYER_OPTIONS = "tile_classes", "sub_centers", "logits_cache_mb", "center_dtype", "unit_copy"
AVERAGES = "ema_decay", "average_checkpoints"  # settings with which a training keeps an average of its weights
OF_HEAD = "classes", "batch", "ratio", "margin", "task_options", *LAYER_OPTIONS  # fields of one head


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command. Case has their defaults."""
    parser.argument_default = argparse.SUPPRESS
    count, size = whole_number(1), whole_number(0)
    add = parser.add_argument
    add("--classes", type=count, help="number of classes of the training")
    add("--config", metavar="FILE", help="settings.json of a training; options override its settings")
    add(TRUST, action="store_true", default=False, help=TRUST_HELP)
    add("--trainer", choices=TRAINERS, help="trainer to plan for (default: mxnet)")
    add("--margin", choices=MARGINS, help="margin of the loss (default: combined)")
    add("--ranks", type=count, help="number of processes, one per GPU (default: 1)")
    add("--batch", type=count, help="batch size per rank (default: 64)")
    add("--embedding", type=count, help="embedding size (default: 512)")
    add("--ratio", type=float, help="fraction of the class centers sampled per step (default: 1)")
    add("--network", help="backbone (default: none, plan only the layer)")
    add("--fp16", action="store_true", help="train the backbone in float16")
    add("--device", choices=DEVICES, help="device that the ranks compute on (default: gpu)")
    add("--bank", choices=BANKS, help="where centers and states are stored (default: gpu)")
    add("--optimizer", choices=CENTER_STATES, help="optimizer of the centers (default: sgd; mxnet has only sgd)")
    add("--tile-classes", type=size, help="classes per tile (default: 0, chosen for the device)")
    add("--logits-cache-mb", type=size, help="MiB of logits kept for the backward pass (default: 256)")
    text = "memory of a GPU, to check whether the training fits"
    add("--gpu-memory", type=number_above_0("GiB"), metavar="GIB", default=None, help=text)
    add("--json", action="store_true", default=False, help="print JSON, in bytes and seconds")
    add = parser.add_argument_group("PyTorch trainer").add_argument
    add("--heads", metavar="FILE", help="TOML, JSON or YAML file with several heads (setting heads)")
    add("--task", metavar="MODULE:NAME", help="task that makes the network's inputs (default: images)")
    add("--task-options", metavar="NAME=VALUE", help="options of the task")
    add("--sub-centers", type=count, help="centers per class (default: 1)")
    add("--center-dtype", choices=CENTER_DTYPES, help="data type of stored centers and states (default: float32)")
    add("--unit-copy", choices=UNIT_COPIES, help="unit centers in 16 bits (default: auto, if memory is left)")
    add("--backbone-optimizer", choices=BACKBONE_STATES, help="optimizer of the backbone (default: sgd)")
    add("--ema", action="store_true", help=f"average the backbone's weights (setting {' or '.join(AVERAGES)})")
    add("--activation-checkpointing", action="store_true", help="recompute activations to save memory")
    add("--gradient-dtype", choices=GRADIENT_BYTES, help="type in which ranks exchange gradients (default: float32)")
    add("--gradient-acc", type=count, help="micro-batches per update, each of --batch (default: 1)")
    text = "With any of these, a lower bound for the time of a step is printed."
    add = parser.add_argument_group("peak rates", text).add_argument
    for option, (_, _, text) in RATES.items():
        add(f"--{option.replace('_', '-')}", type=number_above_0("a rate"), metavar="N", help=text)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    options = vars(args)
    gpu_memory, as_json, trusts_code = (options.pop(name) for name in ("gpu_memory", "json", "trust_code"))
    rates = {field: options.pop(option) * unit for option, (field, unit, _) in RATES.items() if option in options}
    if "backbone_flops" in rates:
        rates.setdefault("layer_flops", rates["backbone_flops"])
    if "config" in options:
        options = {**_fields_of_config(options, trusts_code), **options}
    if heads := options.pop("heads", ""):
        options |= _fields_of_heads(heads, options)
    if not options.get("classes"):
        raise ValueError("the number of classes is missing: set --classes, or --config with num_classes")
    planned = plan(Case(**options))
    verdict = None if gpu_memory is None else judge(planned, int(gpu_memory * 2**30))
    times = least_times(planned, Rates(**rates)) if rates else []
    print(json.dumps(as_numbers(planned, verdict, times), indent=1) if as_json else as_text(planned, verdict, times))
    return 0


def _fields(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns fields of Case from settings by name, which may lack some."""
    fields = {field: settings[name] for field, name in SETTINGS.items() if name in settings}
    if "layer_options" in settings:
        layer, named = options_of(settings, "layer_options"), split_options("layer_options", settings["layer_options"])
        fields |= {name: getattr(layer, name) for name in LAYER_OPTIONS if name in named}
        if layer.logits_cache_mb < 0:  # which the trainer chooses, and Case by default
            fields.pop("logits_cache_mb", None)
    if "sample_ratio" in settings:
        fields["ratio"] = float(np.max(settings["sample_ratio"]))  # one value, or one per epoch
    return fields


def _fields_of_heads(path: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of Case that the first head sets, and the field ``heads``; ``options`` hold for all heads."""
    from partial_fc.settings import declarations, precedence  # need easydict, which only the trainers install

    settings = {name: options[field] for field, name in SETTINGS.items() if field in options}
    layer_options = join_options({name: str(options[name]) for name in LAYER_OPTIONS if name in options})
    settings |= {"sample_ratio": options.get("ratio", 1.0), "layer_options": layer_options, "heads": path}
    by_name = {}
    for head in precedence.heads_of({**declarations.SETTINGS.defaults(), **settings}):
        fields = {**Case._field_defaults, **_fields(head.settings)}
        if not fields["classes"]:
            raise ValueError(f"{path}: head {head.name}: num_classes is missing")
        by_name[head.name] = {field: fields[field] for field in OF_HEAD}
    first, *others = by_name
    return {**by_name[first], "heads": tuple((name, tuple(by_name[name].items())) for name in others)}


def _fields_of_config(options: dict[str, Any], trusts_code: bool) -> dict[str, Any]:
    """Returns fields of Case from the settings.json of a training, which may lack some settings."""
    from partial_fc.settings.precedence import todays_names  # needs easydict, which only the trainers install

    settings = todays_names(read_settings(options["config"]))
    network = options_of(settings, "network_options")
    fields = {**_fields(settings), "activation_checkpointing": network.activation_checkpointing}
    if fields.get("task") == "faces":
        del fields["task"]
        if settings.get("image_size", IMAGE_SIZE) != IMAGE_SIZE:
            size = settings["image_size"]
            raise ValueError(f"image_size is {size}, but the planner only knows the networks' sizes for {IMAGE_SIZE}")
    if not trusts_code:
        imported = ("network", "task", "rec") if "task" in {**fields, **options} else ("network",)
        refuse_code(options["config"], {name: settings.get(name) for name in imported if name not in options})
    bank = "file" if settings.get("bank_folder") else "gpu" if settings.get("bank_on_gpu", True) else "host"
    return {**fields, "bank": bank, "ema": any(settings.get(name) for name in AVERAGES)}
