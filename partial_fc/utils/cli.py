"""Command lines: the tree of commands, shared options, and the exit after an error or a signal.

A command's module has a docstring (the description), EXAMPLE (arguments of example calls, one call per line),
``add_arguments(parser)`` and ``run(args)``. The latter returns the exit code; slow imports belong there.
"""

from __future__ import annotations

import argparse
import importlib
import io
import logging
import math
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, NoReturn, TypeVar

from partial_fc import __version__

from .cores import usable_cores
from .regular_files import FOLLOW_LINKS
from .shared_folders import keep_from_others
from .text import QUIET, MessageFormatter, printable, say

USER_ERROR = 2  # the exit code of argparse
INTERRUPTED, TERMINATED = 130, 143  # the exit codes of shells after SIGINT and SIGTERM
TORCH = ("torch", "partial_fc_torch")

Number = TypeVar("Number", int, float)


class Command(NamedTuple):
    """A command."""

    help: str  # one line for the list of commands
    module: str  # dotted name


class Group(NamedTuple):
    """A group of commands under a common name."""

    help: str
    commands: Mapping[str, Command | Group]


class Terminated(KeyboardInterrupt):
    """The process received SIGTERM, as from `timeout`, Slurm or `docker stop`. Cleanup is the same as for Ctrl-C."""


class PrintableOutput(io.TextIOWrapper):
    """An output stream that escapes control characters and characters that the terminal cannot encode."""

    def __init__(self, stream: io.TextIOWrapper):
        super().__init__(
            stream.buffer,
            stream.encoding,
            "backslashreplace",
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )

    def write(self, text: str) -> int:
        """Writes the escaped text; returns the length of ``text``."""
        super().write(printable(text))
        return len(text)


def start(main: Callable[[], int]) -> NoReturn:
    """Runs a program and exits with the code that it returns. Ctrl-C prints no traceback, even during imports."""
    try:
        keep_from_others()
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout = PrintableOutput(sys.stdout)
        if isinstance(sys.stderr, io.TextIOWrapper):
            sys.stderr = PrintableOutput(sys.stderr)
        warnings = logging.StreamHandler()
        warnings.setFormatter(MessageFormatter(logging.BASIC_FORMAT))
        logging.getLogger().addHandler(warnings)
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except ImportError as error:
        hint = f": {_how_to_install(error.name or '')}" if isinstance(error, ModuleNotFoundError) else ""
        say(f"error: {error}{hint}", sys.stderr)
        sys.exit(USER_ERROR)


def _how_to_install(name: str) -> str:
    package = name.partition(".")[0]
    if (Path(__file__).parents[2] / "setup-utils").exists():
        if package in TORCH:
            return "run `bash setup-utils/install-torch.sh`, then .venv-torch/bin/partial-fc"
        return "run `bash setup-utils/install.sh`, then `. setup-utils/env.sh`"
    if package == "torch":
        return "install the package with its extra torch: pip install '<wheel or clone>[torch]'"
    return "install the package again, with all that it requires"


def run_tree(tree: Group, program: str, words: Sequence[str]) -> int:
    """Runs the command named by the first words; returns its exit code. Imports only that command's module."""
    command = tree.commands.get(words[0]) if words else None
    if isinstance(command, Group):
        return run_tree(command, f"{program} {words[0]}", words[1:])
    if command is not None:
        return run_module(command.module, f"{program} {words[0]}", words[1:])
    parser = argparse.ArgumentParser(program, description=tree.help)
    parser.add_argument("--version", action="version", version=f"partial-fc {__version__}")
    names = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, entry in tree.commands.items():
        names.add_parser(name, help=entry.help)
    parser.parse_args(words)
    raise AssertionError("not reached: every valid command is handled above")


def run_module(name: str, program: str, words: Sequence[str] | None = None) -> int:
    """Runs a command's module; returns its exit code, see also run_command.

    Args:
        name: dotted name of the module.
        program: the command as the user calls it.
        words: arguments (default: the arguments of the process).
    """
    module = importlib.import_module(name)
    examples = "\n".join(f"  {program} {line}" for line in module.EXAMPLE.splitlines())
    parser = argparse.ArgumentParser(
        program,
        description=(module.__doc__ or "").partition("\nShapes:")[0].strip(),
        epilog=f"example:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_arguments(parser)
    parser.add_argument(
        "--quiet",
        action=_SetVariable,
        nargs=0,
        const=QUIET,
        default=argparse.SUPPRESS,
        help="show no progress and no remarks, only results, warnings and errors",
    )
    words = sys.argv[1:] if words is None else words
    # parse_args does not accept an optional positional after an option; parse_intermixed_args does not accept "--".
    args = parser.parse_args(words) if "--" in words else parser.parse_intermixed_args(words)
    return run_command(lambda: module.run(args))


def run_command(action: Callable[[], int]) -> int:
    """Runs `action`; returns its exit code, 2 after an error in the user's input, 130 or 143 after a signal."""
    try:
        signal.signal(signal.SIGTERM, terminate)
        code = action()
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader of the output has exited (`| head`). Without this line the interpreter's flush at exit would fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (OSError, ValueError, MemoryError) as error:
        text = str(error) or type(error).__name__
        if isinstance(error, OSError) and error.filename is not None and error.strerror:
            text = f"{os.fsdecode(error.filename)}: {error.strerror}"  # str(error) begins with the error number
        say(f"error: {text}", sys.stderr)
        return USER_ERROR
    except Terminated:
        print("terminated", file=sys.stderr)
        return TERMINATED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


def terminate(number: int, frame: object) -> None:
    """Handles the first SIGTERM and ignores later ones, which would interrupt the cleanup."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Terminated


def number_above_0(name: str, highest: float = math.inf) -> Callable[[str], float]:
    """Returns an argparse type for numbers above 0 and up to `highest`; `name` describes them in errors."""
    bounds = "above 0" if highest == math.inf else f"above 0 and at most {highest:g}"
    return _argument_type(float, lambda number: 0 < number <= highest, f"{name} {bounds}")


def whole_number(lowest: int, highest: float = math.inf) -> Callable[[str], int]:
    """Returns an argparse type for integers from `lowest` to `highest`, inclusive."""
    bounds = f"{lowest} or more" if highest == math.inf else f"from {lowest} to {highest}"
    return _argument_type(int, lambda number: lowest <= number <= highest, f"a whole number {bounds}")


def _argument_type(kind: Callable[[str], Number], is_allowed: Callable[[Number], bool], expected: str):
    def parse(text: str) -> Number:
        with suppress(ValueError):
            if is_allowed(number := kind(text)):
                return number
        raise argparse.ArgumentTypeError(f"must be {expected}, got {text!r}")

    return parse


def add_workers(parser: argparse.ArgumentParser) -> None:
    """Adds the option --workers."""
    parser.add_argument(
        "--workers",
        type=whole_number(1),
        default=usable_cores(),
        metavar="N",
        help="number of worker processes (default: one per core)",
    )


def add_force(parser: argparse.ArgumentParser) -> None:
    """Adds the option --force."""
    parser.add_argument("--force", action="store_true", help="replace existing files")


def add_format(parser: argparse.ArgumentParser) -> None:
    """Adds the options --quality and --format."""
    parser.add_argument(
        "--quality", type=whole_number(1, 100), default=95, help="JPEG quality of encoded images (default: 95)"
    )
    parser.add_argument(
        "--format", choices=("jpeg", "png"), default="jpeg", help="format of encoded images (default: jpeg)"
    )


class _SetVariable(argparse.Action):
    def __call__(self, *_) -> None:
        os.environ[self.const] = "1"


def add_follow_links(parser: argparse.ArgumentParser) -> None:
    """Adds the option --follow-links."""
    parser.add_argument(
        "--follow-links",
        action=_SetVariable,
        nargs=0,
        const=FOLLOW_LINKS,
        help="also read images through links that leave the folder",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Adds the option --json."""
    parser.add_argument("--json", action="store_true", help="print the results as JSON")


def add_seed(parser: argparse.ArgumentParser) -> None:
    """Adds the option --seed."""
    parser.add_argument("--seed", type=whole_number(0), default=0, help="seed of the random numbers (default: 0)")
