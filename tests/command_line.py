"""The command partial-fc in this process."""

from partial_fc.__main__ import main


def exit_code(*words):
    """Runs `partial-fc WORDS`; returns its exit code, also if argparse ends it."""
    try:
        return main(list(map(str, words)))
    except SystemExit as ended:
        return ended.code
