"""Command lines: options that several commands share, and how a command ends after an error or a signal."""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from .process_pool import usable_cores

USER_ERROR = 2  # as argparse itself ends
INTERRUPTED, TERMINATED = 130, 143  # as shells count the end by Ctrl-C and by SIGTERM


class Terminated(KeyboardInterrupt):
    """SIGTERM came, as `timeout`, Slurm and `docker stop` send it: to be cleaned up after like Ctrl-C."""


def start(main: Callable[[], int]) -> NoReturn:
    """Run a program and exit with the code it returns. What `main` loads may be interrupted quietly too."""
    try:
        for stream in (sys.stdout, sys.stderr):  # names of files that the terminal cannot show are no reason to fail
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except ModuleNotFoundError as error:
        print(f"error: {error}: run `bash setup-utils/install.sh`, then `. setup-utils/env.sh`", file=sys.stderr)
        sys.exit(USER_ERROR)


def run_command(action: Callable[[], int]) -> int:
    """The exit code of a command: what `action` returns, 2 for an OSError or ValueError, 130 or 143 for a signal."""
    try:
        signal.signal(signal.SIGTERM, terminate)
        code = action()
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


def terminate(number: int, frame: object) -> None:
    """What SIGTERM does; once, so that a second one does not cut the cleaning short."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Terminated


def sentence(error: Exception) -> str:
    """The error's text, without the number that OSError puts before it."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return str(error)


def whole_number(lowest: int, highest: int | None = None):
    """A type for argparse: a whole number within bounds."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = lowest - 1
        if number < lowest or (highest is not None and number > highest):
            bounds = f"{lowest} or more" if highest is None else f"from {lowest} to {highest}"
            raise argparse.ArgumentTypeError(f"must be a whole number {bounds}, got {text!r}")
        return number

    return parse


def add_workers(parser: argparse.ArgumentParser) -> None:
    """How many processes share the work."""
    parser.add_argument(
        "--workers", type=whole_number(1), default=usable_cores(), metavar="N", help="processes (default: one a core)"
    )


def add_force(parser: argparse.ArgumentParser) -> None:
    """Whether results may replace what is there."""
    parser.add_argument("--force", action="store_true", help="replace what is there already")


def add_seed(parser: argparse.ArgumentParser) -> None:
    """What random choices start from."""
    parser.add_argument("--seed", type=whole_number(0), default=0, help="of the random choice (default: 0)")
