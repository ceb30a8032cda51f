"""The command line of a training: options, and settings given as name=value, --name value or --name=value."""

import argparse
import math
import os
from types import ModuleType
from typing import NoReturn

from partial_fc import __version__
from partial_fc.distributed.env import rank_info
from partial_fc.utils.imports import TRUST, TRUST_HELP


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose help and errors are printed by one rank."""

    def __init__(self, default: ModuleType, file: str, trainer: str, description: str):
        settings = (
            "settings, given as name=value, --name value or --name=value, and lists as a,b (presets change some\n"
            "defaults, --print-config shows the result)"
        )
        super().__init__(
            prog=file,
            description=description,
            epilog=f"{settings}:\n\n{default.describe_settings(trainer)}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self._schema = default.SETTINGS
        self.add_argument("--version", action="version", version=f"partial-fc {__version__}")
        self.add_argument(
            "--config",
            metavar="FILE",
            help="take the settings of a JSON, TOML or YAML file, such as the settings.json of a run; others here "
            "override it",
        )
        self.add_argument(TRUST, action="store_true", help=TRUST_HELP)
        self.add_argument("--print-config", action="store_true", help="print the settings as JSON, do not train")
        self.add_argument(
            "--profile-io", action="store_true", help="measure whether reading is the bottleneck, do not train"
        )
        self.add_argument("--profile-seconds", type=float, metavar="S", help="length of each of its three phases (8)")
        self.add_argument("settings", nargs="*", metavar="name=value", help="any setting of those below")

    def parse(self, argv: list[str]) -> argparse.Namespace:
        """Parses the command line; ``settings`` of the result holds the name=value arguments as typed.

        Raises:
            ValueError: An argument is not allowed.
        """
        words = self._with_assignments(argv)
        self._task = next((word[5:] for word in reversed(words) if word.startswith("task=")), "")
        args, unknown = self.parse_known_intermixed_args(words)
        if unknown:
            options = [option for option in self._option_string_actions if option.startswith("--")]
            raise self._schema.unknown(unknown[0].partition("=")[0].lstrip("-"), options)
        seconds = args.profile_seconds
        if seconds is not None and not (args.profile_io and 0 < seconds < math.inf):
            self.error(f"--profile-seconds is {seconds}, but must be above 0 and go with --profile-io")
        return args

    def _with_assignments(self, argv: list[str]) -> list[str]:
        """Returns the arguments with every ``--name value`` and ``--name=value`` of a setting as ``name=value``."""
        words, result = argv[::-1], []
        while words:
            word = words.pop()
            option, equals, value = word.partition("=")
            name = option[2:].replace("-", "_")
            setting = self._schema.get(name) if option.startswith("--") else None
            if setting and not equals:
                is_flag, follows = type(setting.default) is bool, bool(words) and not words[-1].startswith("--")
                if follows and not (is_flag and words[-1].lower() not in ("true", "false")):
                    value = words.pop()
                elif is_flag:
                    value = "True"
                else:
                    self.error(f"{option} has no value: give one, as in {option} {setting.default or 'VALUE'}")
            result.append(f"{name}={value}" if setting else word)
        return result

    def error(self, message: str) -> NoReturn:
        """Raises ValueError instead of exiting, because only one rank reports an error."""
        raise ValueError(f"{message}; see {self.prog} --help")

    def print_help(self, file=None) -> None:
        """Prints the help on rank 0; with ``task=...``, also the help about the task's settings."""
        if rank_info(os.environ).rank != 0:
            return
        super().print_help(file)
        if self._task:
            from .tasks import find_task  # imports libraries that the rest of the help does not need

            print(f"\n{find_task(self._task).schema().describe({})}", file=file)


def likely_root(argv: list[str]) -> str:
    """Guesses the folder of the other ranks' status store, for a rank that cannot load its settings."""
    values = {"models_root": "models"}
    for argument, following in zip(argv, [*argv[1:], ""]):
        name, equals, value = argument.removeprefix("--").partition("=")
        values[name.replace("-", "_")] = value if equals else following
    root = os.path.dirname(os.path.normpath(values["output"])) if "output" in values else values["models_root"]
    return os.path.expanduser(root)
