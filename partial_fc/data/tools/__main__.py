"""python -m partial_fc.data.tools COMMAND ...: see command.py."""

from __future__ import annotations

from partial_fc.utils.cli import start


def main() -> int:
    # Here, so that Ctrl-C while it loads is no traceback either, and so that workers, which import this file, load no
    # more than they need.
    from .command import main as command

    return command()


if __name__ == "__main__":
    start(main)
