"""Face sets (train.rec, train.idx, property) made, taken apart, merged, described, checked and looked at."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from types import ModuleType

from partial_fc.face_sets import check, info, merge, pack, pairs_bin, sheet, unpack

COMMANDS: dict[str, ModuleType] = {
    "pack": pack,
    "unpack": unpack,
    "merge": merge,
    "info": info,
    "check": check,
    "bin": pairs_bin,
    "sheet": sheet,
}
USER_ERROR = 2  # as argparse itself ends
INTERRUPTED, TERMINATED = 130, 143  # as shells count the end by Ctrl-C and by SIGTERM


class Terminated(KeyboardInterrupt):
    """SIGTERM came, as `timeout`, Slurm and `docker stop` send it: to be cleaned up after like Ctrl-C."""


def terminate(number: int, frame: object) -> None:
    """What SIGTERM does; once, so that a second one does not cut the cleaning short."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Terminated


def build_parser() -> argparse.ArgumentParser:
    """The parser of all subcommands."""
    parser = argparse.ArgumentParser(prog="python -m partial_fc.face_sets", description=__doc__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, module in COMMANDS.items():
        text = (module.__doc__ or "").partition("\nShapes:")[0].strip()
        command = commands.add_parser(
            name,
            help=module.HELP,
            description=text,
            epilog=f"example:\n  {module.EXAMPLE}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run one subcommand; returns the exit code: 0, 1 where `check` found something, 2 for an error, 130 or 143."""
    args = build_parser().parse_args(arguments)
    try:
        signal.signal(signal.SIGTERM, terminate)
        code = args.run(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # Whoever read the output has gone (`| head`). Else the interpreter complains when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (OSError, ValueError) as error:
        print(f"error: {sentence(error)}", file=sys.stderr)
        return USER_ERROR
    except Terminated:
        print("terminated", file=sys.stderr)
        return TERMINATED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


def sentence(error: Exception) -> str:
    """The error's text, without the number that OSError puts before it."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return str(error)
