"""The program of one rank: reads its settings, starts, trains and ends.

train_memory.py and train.py derive their programs from TrainingProgram.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from partial_fc.distributed.env import RankInfo, rank_info, share_cores
from partial_fc.distributed.errors import INTERRUPTED, NOTHING_SAVED, REFUSED, errors_of_head, with_user_place
from partial_fc.distributed.rank_status import RankStatusStore
from partial_fc.distributed.signals import block_signals, repeat_lost_interrupts
from partial_fc.distributed.watchdog import PREPARATION, Watchdog, refuse
from partial_fc.utils.config import parse_assignments, to_json
from partial_fc.utils.garbage import infrequent_gc
from partial_fc.utils.imports import search_current_folder, trainer_root
from partial_fc.utils.regular_files import FOLLOW_LINKS
from partial_fc.utils.shared_folders import keep_from_others
from partial_fc.utils.streams import keep_streams, lost_output
from partial_fc.utils.text import say
from partial_fc.utils.user_code import place_in_user_code, refusal

from .command_line import Parser, likely_root

if TYPE_CHECKING:  # else this file needs NumPy, whose absence it reports
    from .framework import Framework
    from .tasks import Task


class TrainingProgram:
    """A program whose ranks all parse the same command line.

    A subclass implements the methods that raise NotImplementedError. The framework must not be imported before
    ``prepare_host``, because it reads environment variables once. NumPy must not be imported before ``import_default``.

    Attributes:
        file: command of the program, for its help.
        trainer: key in TRAINERS of partial_fc.settings.presets.
        package: the trainer's package.
        description: text for ``--help``.
        install: command that installs what the program needs.
    """

    file: str
    trainer: str
    package: str
    description: str
    install: str

    def import_default(self) -> ModuleType:
        """Imports the module of the settings: partial_fc.settings.configuration, or default.py with its names."""
        raise NotImplementedError

    def prepare_host(self, settings) -> None:
        """Sets environment variables before the framework is imported."""

    def load_framework(self, settings) -> Framework:
        """Imports the framework; one rank of the host reports a ValueError, OSError or ImportError."""
        raise NotImplementedError

    def connect(self, settings) -> None:
        """Connects the ranks of the job, and returns when all have called it. Raises ValueError or OSError."""
        raise NotImplementedError

    def disconnect(self) -> None:
        """Leaves the job after a training that ended well."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Adds further options."""

    def main(self, argv: list[str] | None = None) -> None:
        """Runs this rank; returns if all went well."""
        block_signals()
        repeat_lost_interrupts()
        keep_streams()
        keep_from_others()
        try:
            self.run(sys.argv[1:] if argv is None else argv)
        except (Exception, KeyboardInterrupt) as error:
            # A library that is interrupted while it loads may raise another error.
            if not any(isinstance(cause, KeyboardInterrupt) for cause in (error, error.__context__)):
                raise
            if rank_info(os.environ).rank == 0:
                say(NOTHING_SAVED, sys.stderr)
            os._exit(INTERRUPTED)  # not sys.exit: the framework's exit handler would wait for the other ranks

    def parse_args(self, argv: list[str]) -> argparse.Namespace:
        """Parses the command line, see Parser.parse."""
        parser = Parser(self.import_default(), self.file, self.trainer, self.description)
        self.add_arguments(parser)
        return parser.parse(argv)

    def load_settings(self, args: argparse.Namespace):
        """Fills ``default.config`` from the command line and returns it."""
        recipe = self.read_recipe(args)
        default, trainer = self.import_default(), self.trainer
        changes = parse_assignments(args.settings, default.SETTINGS)
        return default.generate_config(
            changes=changes, config_file=args.config, trainer=trainer, recipe=recipe, trust_code=args.trust_code
        )

    def read_recipe(self, args: argparse.Namespace) -> dict[str, Any] | None:
        """Returns the settings of a recipe, and removes its name from the arguments; the user's settings win."""
        return None

    def run(self, argv: list[str]) -> None:
        """Loads the settings, starts this rank and trains."""
        search_current_folder()
        ranks = rank_info(os.environ)
        args, settings = self._load(argv, ranks)
        if args.print_config:
            if ranks.rank == 0:
                print(to_json(settings), end="", flush=True)
                if lost_output():
                    sys.exit(f"error: the settings cannot be printed: {lost_output()}")
            return
        framework, work = self._start(args, settings, ranks)
        from partial_fc.distributed.run_rank import run_rank

        run_rank(framework.collectives, work)
        self.disconnect()

    def _load(self, argv: list[str], ranks: RankInfo) -> tuple[argparse.Namespace, Any]:
        """Returns arguments and settings; an error ends all ranks, which read the same command line."""
        try:
            args = self.parse_args(argv)
            settings = self.load_settings(args)
            from .run_folder import output_folder  # here, so that missing libraries are reported

            output_folder(settings)  # refuses some names
            return args, settings
        except (ValueError, OSError, ImportError) as error:
            if ranks.size == 1:
                say(self._message(error), sys.stderr)
                sys.exit(REFUSED)
            rank_status = RankStatusStore.of_job(os.path.abspath(likely_root(argv)), os.environ, ranks.rank).open()
            self._refuse(error, ranks.rank == 0, rank_status)

    @infrequent_gc()
    def _start(self, args: argparse.Namespace, settings, ranks: RankInfo) -> tuple[Framework, Callable[[], None]]:
        """Imports the framework and connects the ranks; returns the framework, and this rank's work from then on.

        One rank of each host prepares the host for all, and reports an error.
        """
        from .run_folder import output_folder
        from .schedules import Moment, build_schedule

        # Environments made by setup-utils contain this path, users' environments do not.
        sys.path.append(str(trainer_root(self.package)))
        watchdog = Watchdog(ranks, os.path.dirname(output_folder(settings)), os.environ)
        watchdog.start()
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not ignored, as in a shell's background
            signal.signal(signal.SIGINT, watchdog.interrupt)
        try:
            share_cores(os.environ)
            self.prepare_host(settings)
            heads = self.import_default().heads
            watchdog.mark(PREPARATION)
            tasks = self._build_tasks(settings, prepares=ranks.local_rank == 0)
            watchdog.mark("startup")
            framework = self.load_framework(settings)
            for task in tasks:
                framework.check_task(task)
            # Tries the last update of a long training, so that an error of a user's schedule is reported now.
            build_schedule(settings, updates=10**6, of_epoch=10**4)(Moment(update=10**6, epoch=99, place=10**6))
            work: Callable[[], None]
            if args.profile_io:
                if settings.debug:
                    raise ValueError(
                        f"--profile-io measures how a set is read, but {settings.dataset} with debug=True has only "
                        "dummy data: set --dataset to a data set, or debug=False and rec=<path of a train.rec>"
                    )
                from .profiling.io_profile import SECONDS, profile

                work = partial(profile, heads[0].settings, framework, args.profile_seconds or SECONDS)
            else:
                from .trainer import train

                default = self.import_default()
                defaults = default.SETTINGS.defaults()
                work = partial(train, settings, framework, default.todays_names, heads, defaults)
            framework.collectives.watchdog = watchdog
            with framework.collectives.waiting("the start of the ranks"):
                self.connect(settings)
        except (Exception, SystemExit) as error:
            is_refusal = isinstance(error, (ValueError, OSError, ImportError))
            if is_refusal or place_in_user_code(error):
                watchdog.stand_down()
                self._refuse(error if is_refusal else refusal(error), ranks.local_rank == 0, watchdog.rank_status)
            watchdog.rank_status.claim_error_report()  # the other ranks leave the report to the traceback
            raise
        return framework, work

    def _build_tasks(self, settings, prepares: bool) -> list[Task]:
        """Returns the task of each head; with ``prepares``, each makes or checks its training set first."""
        from .tasks import build_task

        if settings.follow_links:
            os.environ[FOLLOW_LINKS] = "1"
        tasks = []
        for head in self.import_default().heads:
            with errors_of_head(head.name):
                tasks.append(build_task(head.settings))
                if prepares:
                    tasks[-1].prepare(os.getcwd())
        return tasks

    def _message(self, error: BaseException, where: str = "") -> str:
        """Returns the message of an error that refuses the training."""
        hint = f", run `{self.install}` first" if isinstance(error, ModuleNotFoundError) else ""
        return with_user_place(f"error{where}: {error}{hint}", error)

    def _refuse(self, error: BaseException, is_reporter: bool, rank_status: RankStatusStore) -> NoReturn:
        where = "" if is_reporter else f" on rank {rank_status.rank}"
        refuse(rank_status, is_reporter, rank_info(os.environ).local_size, self._message(error, where))
