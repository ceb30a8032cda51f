"""python -m partial_fc.face_sets COMMAND ...: see command.py."""

from __future__ import annotations

from partial_fc.command_line import start


def main() -> int:
    # Here, so that Ctrl-C while it loads is no traceback either, and so that workers, which import this file, load no
    # more than they need.
    from partial_fc.face_sets.command import main as command

    return command()


if __name__ == "__main__":
    start(main)
