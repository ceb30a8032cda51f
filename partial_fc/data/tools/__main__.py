"""python -m partial_fc.data.tools COMMAND ...: see command.py."""

from __future__ import annotations

from partial_fc.utils.cli import start


def main() -> int:
    """Runs one subcommand; returns the exit code."""
    # Imported here, so that Ctrl-C during the import prints no traceback, and so that workers, which import this file,
    # do not import all commands.
    from .command import main as command

    return command()


if __name__ == "__main__":
    start(main)
