"""Prints what a training needs: the memory of a rank by part, the bytes that a step moves, and whether it fits. With
--network-gbit also how long a step takes on V100 cards, by what was published of them (docs/scale.md).

The class centers are spread over the ranks; the backbone is on each.
"""

from __future__ import annotations

import argparse
import json

from . import Case, Plan, plan
from .backbones import BACKBONES
from .case import BANKS, DEVICES
from .machine import V100
from .report import format_plan, numbers
from .times import Time, step_times
from .verdict import judge

EXAMPLE = (
    "example:\n  python -m partial_fc.planner --classes 10000000 --ranks 8 --ratio 0.1 --network r50 --fp16 "
    "--gpu-memory 10.76"
)


def build_parser() -> argparse.ArgumentParser:
    """The parser; what the user leaves out is Case's default."""
    parser = argparse.ArgumentParser(
        prog="python -m partial_fc.planner",
        description=__doc__,
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("--classes", type=int, required=True, help="of the whole training")
    parser.add_argument("--ranks", type=int, help="processes, one on each GPU (1)")
    parser.add_argument("--batch", type=int, help="images of a rank (64)")
    parser.add_argument("--embedding", type=int, help="numbers of an embedding (512)")
    parser.add_argument("--ratio", type=float, help="share r of the class centers that take part in a step (1)")
    parser.add_argument("--network", choices=sorted(BACKBONES), help="the backbone (none: the layer alone)")
    parser.add_argument("--fp16", action="store_true", help="the backbone in float16")
    parser.add_argument("--device", choices=DEVICES, help="what the ranks compute on (gpu)")
    parser.add_argument("--bank", choices=BANKS, help="where centers and momentum lie (gpu: where the rank computes)")
    parser.add_argument("--tile-classes", type=int, help="classes worked on at once (0: what suits the device)")
    parser.add_argument("--kept-mb", type=int, help="the most that a step keeps of its logits, MiB (256)")
    parser.add_argument("--gpu-memory", type=float, metavar="GIB", default=None, help="of each GPU, to judge by")
    parser.add_argument(
        "--network-gbit", type=float, metavar="GBIT", default=None, help="of a host's card: asks for times"
    )
    parser.add_argument("--gpus-per-host", type=int, default=8, help="ranks that share the card (8)")
    parser.add_argument("--json", action="store_true", default=False, help="numbers, in bytes, instead of tables")
    return parser


def published_times(planned: Plan, gigabits: float, of_host: int) -> list[Time]:
    """Of a step on V100 cards.

    Raises:
        ValueError: the ranks have no GPUs, or the network or its hosts are none.
    """
    if planned.case.device != "gpu":
        raise ValueError("step times are known of GPUs; benchmarks/links.py measures those of this host's CPU")
    return step_times(planned, V100.on(gigabits), of_host)


def main(arguments: list[str] | None = None) -> None:
    parser = build_parser()
    words = vars(parser.parse_args(arguments))
    given, as_json = words.pop("gpu_memory"), words.pop("json")
    gigabits, of_host = words.pop("network_gbit"), words.pop("gpus_per_host")
    try:
        planned = plan(Case(**words))
        verdict = None if given is None else judge(planned, int(given * 2**30))
        times = [] if gigabits is None else published_times(planned, gigabits, of_host)
    except ValueError as error:
        parser.error(str(error))
    print(json.dumps(numbers(planned, verdict, times), indent=1) if as_json else format_plan(planned, verdict, times))


if __name__ == "__main__":
    main()
