"""Prints the memory of a rank, the traffic of a training step, and whether the training fits into the GPUs.

With --network-gbit it also predicts the time of a step: on V100 cards from published figures, on A100 and H100 cards
the least that their data sheets allow (docs/scale.md).

The class centers are divided among the ranks; every rank has the whole backbone.
"""

from __future__ import annotations

import argparse
import json

from . import Case, Plan, plan
from .backbones import BACKBONES
from .case import BANKS, DEVICES, TRAINERS
from .machine import CARDS, DATA_SHEETS
from .report import format_plan, numbers
from .times import Time, step_times
from .verdict import judge

EXAMPLE = "--classes 10000000 --ranks 8 --ratio 0.1 --network r50 --fp16 --gpu-memory 10.76"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command; defaults are those of Case."""
    parser.argument_default = argparse.SUPPRESS
    parser.add_argument("--classes", type=int, required=True, help="number of classes of the training")
    parser.add_argument("--trainer", choices=TRAINERS, help="mxnet (default) or torch")
    parser.add_argument("--ranks", type=int, help="number of processes, one per GPU (default: 1)")
    parser.add_argument("--batch", type=int, help="batch size of a rank (default: 64)")
    parser.add_argument("--embedding", type=int, help="embedding size (default: 512)")
    parser.add_argument("--ratio", type=float, help="sample ratio r of the class centers (default: 1)")
    parser.add_argument("--network", choices=sorted(BACKBONES), help="backbone (default: none, the layer alone)")
    parser.add_argument("--fp16", action="store_true", help="train the backbone in float16")
    parser.add_argument("--device", choices=DEVICES, help="device that the ranks compute on (default: gpu)")
    parser.add_argument("--bank", choices=BANKS, help="where centers and momentum are stored (default: gpu)")
    parser.add_argument("--tile-classes", type=int, help="classes of a tile (default: 0, chosen for the device)")
    parser.add_argument(
        "--logits-cache-mb", type=int, help="MiB of logits to keep for the backward pass (default: 256)"
    )
    parser.add_argument(
        "--gpu-memory", type=float, metavar="GIB", default=None, help="memory of a GPU, to check against"
    )
    parser.add_argument(
        "--network-gbit",
        type=float,
        metavar="GBIT",
        default=None,
        help="of a host's network card; predicts step times",
    )
    parser.add_argument("--card", choices=("V100", *DATA_SHEETS), help="of the step times (default: V100)")
    parser.add_argument("--gpus-per-host", type=int, default=8, help="ranks that share the card (default: 8)")
    parser.add_argument("--json", action="store_true", default=False, help="print JSON, in bytes and seconds")


def card_times(planned: Plan, card: str, gigabits: float, of_host: int) -> list[Time]:
    """Predicts the times of a step.

    Args:
        planned: the case.
        card: a key of CARDS or DATA_SHEETS.
        gigabits: speed of a host's network card, Gbit/s.
        of_host: ranks of a host.

    Raises:
        ValueError: the ranks have no GPUs, or a number is out of range.
    """
    if planned.case.trainer == "mxnet" and card in DATA_SHEETS:
        raise ValueError(f"MXNet has no kernels for the {card}: add --trainer torch")
    if planned.case.device != "gpu":
        raise ValueError("step times are predicted for GPUs only; benchmarks/links.py measures those of a CPU")
    return step_times(planned, {**CARDS, **DATA_SHEETS}[card].on(gigabits), of_host)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    options = vars(args)
    gpu_memory, as_json = options.pop("gpu_memory"), options.pop("json")
    gigabits, of_host, card = options.pop("network_gbit"), options.pop("gpus_per_host"), options.pop("card", "V100")
    planned = plan(Case(**options))
    if card == "V100" and planned.case.trainer == "torch":
        card = "V100, PyTorch"
    verdict = None if gpu_memory is None else judge(planned, int(gpu_memory * 2**30))
    times = [] if gigabits is None else card_times(planned, card, gigabits, of_host)
    if as_json:
        print(json.dumps(numbers(planned, verdict, times), indent=1))
    else:
        print(format_plan(planned, verdict, times, card))
    return 0
