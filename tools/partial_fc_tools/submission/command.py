"""Checks a submission to the masked-face challenge (ICCV 2021, InsightFace track) against its rules.

Prints the result of each rule, such as the size in MB (2^20 bytes) and the median time of one face. The exit code is 0
if all rules passed, 1 if a rule failed, and 2 if the submission cannot be checked.
"""

import argparse

from partial_fc.utils.cli import number_above_0
from partial_fc.utils.text import say

from .rules import REFERENCE_DEVICE, TRACKS

EXAMPLE = "--model-root models/r50-cosface-glint360k_8GPU --track glint"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("--model_root", "--model-root", required=True, help="folder with an .onnx file")
    parser.add_argument("--track", choices=list(TRACKS), default="ms1m", help="limits to check (default: ms1m)")
    milliseconds = number_above_0("a number of milliseconds")
    text = f"time limit per face; the track's own limit is meant for {REFERENCE_DEVICE}"
    parser.add_argument("--time-limit", type=milliseconds, metavar="MS", help=text)


def run(args: argparse.Namespace) -> int:
    """Runs the check; returns the exit code."""
    from .check import NOT_CHECKED, check_submission

    limits = TRACKS[args.track]
    if args.time_limit is not None:
        limits = limits._replace(milliseconds=args.time_limit)
    rules = check_submission(args.model_root, limits)
    for rule in rules:
        say(f"{'pass' if rule.passed else 'FAIL'}  {rule.name:<14}  {rule.result}")
    time = rules[-1]
    if args.time_limit is None and not time.passed and time.result != NOT_CHECKED:
        say(f"the time limit is for {REFERENCE_DEVICE}: --time-limit MS sets another")
    failed = sum(not rule.passed for rule in rules)
    result = f"{failed} of {len(rules)} rules failed" if failed else "all rules passed"
    say(f"track {args.track}: {result}")
    return 1 if failed else 0
