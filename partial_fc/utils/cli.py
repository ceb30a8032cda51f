"""How commands end: with a sentence for an error, without a traceback or half a cleaning for Ctrl-C and SIGTERM."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

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
