"""Prints the memory of a rank, the traffic of a training step, and whether the training fits into the GPUs.

With peak rates (from a data sheet, or measured) it also prints the least time that a step can take (docs/scale.md).

The class centers are divided among the ranks; every rank has the whole backbone.
"""

import argparse
import json

from partial_fc.layer.center_states import CENTER_STATES
from partial_fc.layer.margins import MARGINS
from partial_fc.utils.cli import number_above_0, whole_number

from . import Case, plan
from .case import BACKBONE_STATES, BANKS, DEVICES, GRADIENT_BYTES, TRAINERS
from .report import format_plan, numbers
from .roofline import Rates, least_times
from .verdict import judge

EXAMPLE = "--classes 10000000 --ranks 8 --ratio 0.1 --network r50 --fp16 --gpu-memory 10.76"
# Option of a rate -> (field of Rates, what one unit of the option is, help).
RATES = {
    "tflops": ("backbone_flops", 1e12, "peak Tflop/s of the backbone's products, in their precision"),
    "layer_tflops": ("layer_flops", 1e12, "peak Tflop/s of the layer's products (default: --tflops)"),
    "memory_gbs": ("memory_bandwidth", 1e9, "GB/s of the device's memory"),
    "bus_gbs": ("bus_bandwidth", 1e9, "GB/s between host and GPU, one way"),
    "network_gbit": ("network_bandwidth", 1e9 / 8, "Gbit/s of the slowest link between ranks, one way"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command; defaults are those of Case."""
    parser.argument_default = argparse.SUPPRESS
    count, size = whole_number(1), whole_number(0)
    parser.add_argument("--classes", type=count, required=True, help="number of classes of the training")
    parser.add_argument("--trainer", choices=TRAINERS, help="mxnet (default) or torch")
    parser.add_argument("--margin", choices=MARGINS, help="of the loss (default: combined)")
    parser.add_argument("--ranks", type=count, help="number of processes, one per GPU (default: 1)")
    parser.add_argument("--batch", type=count, help="batch size of a rank (default: 64)")
    parser.add_argument("--embedding", type=count, help="embedding size (default: 512)")
    parser.add_argument("--ratio", type=float, help="sample ratio r of the class centers (default: 1)")
    parser.add_argument("--network", help="backbone (default: none, the layer alone)")
    parser.add_argument("--fp16", action="store_true", help="train the backbone in float16")
    parser.add_argument("--device", choices=DEVICES, help="device that the ranks compute on (default: gpu)")
    parser.add_argument("--bank", choices=BANKS, help="where centers and states are stored (default: gpu)")
    parser.add_argument("--optimizer", choices=CENTER_STATES, help="of the centers (default: sgd; others: torch only)")
    parser.add_argument("--tile-classes", type=size, help="classes of a tile (default: 0, chosen for the device)")
    parser.add_argument(
        "--logits-cache-mb", type=size, help="MiB of logits to keep for the backward pass (default: 256)"
    )
    torch = parser.add_argument_group("of the PyTorch trainer")
    torch.add_argument("--backbone-optimizer", choices=BACKBONE_STATES, help="setting optimizer (default: sgd)")
    torch.add_argument("--ema", action="store_true", help="average the backbone's weights (setting ema_decay)")
    torch.add_argument("--activation-checkpointing", action="store_true", help="compute the backbone's maps twice")
    torch.add_argument("--gradient-dtype", choices=GRADIENT_BYTES, help="of gradients between ranks (default: float32)")
    torch.add_argument("--gradient-acc", type=count, help="micro-batches of an update, each of --batch (default: 1)")
    memory = number_above_0("GiB")
    parser.add_argument("--gpu-memory", type=memory, metavar="GIB", default=None, help="of a GPU, to check against")
    rates = parser.add_argument_group("peak rates", "With any of them the least time of a step is printed.")
    for option, (_, _, text) in RATES.items():
        rates.add_argument(f"--{option.replace('_', '-')}", type=number_above_0("a rate"), metavar="N", help=text)
    parser.add_argument("--json", action="store_true", default=False, help="print JSON, in bytes and seconds")


def _pop_rates(options: dict[str, float]) -> Rates | None:
    """Removes the rates from the options and returns them; None if there are none."""
    given = {field: options.pop(option) * unit for option, (field, unit, _) in RATES.items() if option in options}
    if not given:
        return None
    rates = Rates(**given)
    return rates if "layer_flops" in given else rates._replace(layer_flops=rates.backbone_flops)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    options = vars(args)
    gpu_memory, as_json, rates = options.pop("gpu_memory"), options.pop("json"), _pop_rates(options)
    planned = plan(Case(**options))
    verdict = None if gpu_memory is None else judge(planned, int(gpu_memory * 2**30))
    times = [] if rates is None else least_times(planned, rates)
    print(json.dumps(numbers(planned, verdict, times), indent=1) if as_json else format_plan(planned, verdict, times))
    return 0
