"""The command partial-fc, in this process or in a new one."""

import argparse
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

from partial_fc_tools.__main__ import main
from paths import with_root


def exit_code(*words):
    """Runs `partial-fc WORDS`; returns its exit code, also if argparse ends it, and restores the environment."""
    environment = dict(os.environ)
    try:
        return main(list(map(str, words)))
    except SystemExit as ended:
        return ended.code
    finally:  # `sets align` sets OpenCV's limit of pixels
        os.environ.clear()
        os.environ.update(environment)


def call(module, *words):
    """Runs a module's command in this process and raises its errors."""
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    return module.run(parser.parse_args(list(map(str, words))))


def start(*words, **options):
    """Runs `partial-fc WORDS` in a new process in the current folder; returns its CompletedProcess."""
    command = [sys.executable, "-m", "partial_fc_tools", *map(str, words)]
    return subprocess.run(command, env=with_root(), capture_output=True, text=True, timeout=60, **options)


@contextmanager
def interruptible(*command, **options):
    """Yields a program that Ctrl-C interrupts, with stderr in a pipe; kills it at the end."""
    child = subprocess.Popen(
        [sys.executable, *map(str, command)],
        env=with_root(),
        stderr=subprocess.PIPE,
        text=True,
        # Background processes of a shell ignore SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **options,
    )
    try:
        yield child
    finally:
        child.kill()
        child.wait()
        child.stderr.close()
