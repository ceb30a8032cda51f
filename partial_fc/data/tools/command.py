"""Creates, unpacks, merges, describes, checks and displays face sets (train.rec, train.idx, property)."""

from __future__ import annotations

import argparse
from types import ModuleType

from partial_fc.utils.cli import run_command

from . import check, info, merge, pack, pairs_bin, sheet, unpack

COMMANDS: dict[str, ModuleType] = {
    "pack": pack,
    "unpack": unpack,
    "merge": merge,
    "info": info,
    "check": check,
    "bin": pairs_bin,
    "sheet": sheet,
}


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of all subcommands."""
    parser = argparse.ArgumentParser(prog="python -m partial_fc.data.tools", description=__doc__)
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
    """Runs a subcommand; returns 0, 1 if `check` has found problems, 2 for an error, 130 or 143 after a signal."""
    args = build_parser().parse_args(arguments)
    return run_command(lambda: args.run(args))
