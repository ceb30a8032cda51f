"""Trains a face-recognition embedding with Partial FC.

One rank:        python train_memory.py
Two ranks:       bash run.sh, or horovodrun -np 2 -H localhost:2 bash config.sh
I/O profiling:   the same with --profile-io
Run it again:    the same with --config models/small-arcface-demo/settings.json
"""

import argparse
import math
import os
import sys
import time

from partial_fc.distributed.env import deterministic_allreduce, rank_info, share_cores
from partial_fc.distributed.errors import REFUSED
from partial_fc.distributed.interfaces import name_interfaces
from partial_fc.distributed.rank_status import RankStatusStore, job_key
from partial_fc.distributed.signals import block_signals, release_signals
from partial_fc.distributed.watchdog import Watchdog
from partial_fc.utils.config import parse_assignments, to_json

# Settings that have an option of their own, beside name=value.
OPTIONS = ("dataset", "loss", "network", "models_root", "resume", "pretrained", "class_map")


class Parser(argparse.ArgumentParser):
    """An ArgumentParser of a program whose ranks all parse the same command line: rank 0 prints the help."""

    def error(self, message):
        """Raises ValueError in place of exiting: only one rank reports an error."""
        raise ValueError(f"{message}; see python train_memory.py --help")

    def print_help(self, file=None):
        """Prints the help on rank 0."""
        if rank_info(os.environ).rank == 0:
            super().print_help(file)


def parse_args(argv):
    """Parses the command line; ``settings`` holds the name=value arguments as they were typed."""
    import default

    settings = "settings, given as name=value (presets change some defaults, --print-config shows the result)"
    parser = Parser(
        description=__doc__,
        epilog=f"{settings}:\n\n{default.describe_settings()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for name in OPTIONS:
        parser.add_argument("--" + name.replace("_", "-"), metavar="VALUE", help=default.SETTINGS.settings[name].help)
    parser.add_argument(
        "--config", metavar="FILE", help="take the settings of a settings.json; others here override it"
    )
    parser.add_argument("--print-config", action="store_true", help="print the settings as JSON, do not train")
    parser.add_argument(
        "--profile-io", action="store_true", help="measure whether reading is the bottleneck, do not train"
    )
    parser.add_argument("--profile-seconds", type=float, metavar="S", help="length of each of its three phases (8)")
    parser.add_argument("settings", nargs="*", metavar="name=value", help="any setting of those below")
    args = parser.parse_intermixed_args(argv)
    seconds = args.profile_seconds
    if seconds is not None and not (args.profile_io and 0 < seconds < math.inf):
        parser.error(f"--profile-seconds is {seconds}, but must be above 0 and go with --profile-io")
    return args


def load_settings(args):
    """Fills ``default.config`` from the command line and returns it."""
    import default

    changes = parse_assignments(args.settings)
    changes.update({name: getattr(args, name) for name in OPTIONS if getattr(args, name) is not None})
    return default.generate_config(changes=changes, config_file=args.config)


def choose_work(args, settings):
    """Returns what this rank does once Horovod has been started."""
    from partial_fc_mxnet.build import MXNetFramework

    if args.profile_io:
        from partial_fc.training.profiling.io_profile import SECONDS, profile

        return lambda: profile(settings, MXNetFramework(), args.profile_seconds or SECONDS)
    from partial_fc.training.trainer import train

    return lambda: train(settings, MXNetFramework())


def draw_demo(settings):
    """Draws the faces of the demo if they are trained on and missing."""
    if settings.dataset == "demo" and not settings.debug and not settings.rec:
        from partial_fc.data.synthetic import ensure_demo

        def announce(done, total):
            if done == 1:
                print(f"Drawing {total} faces into {folder}, once; this takes about a minute.", flush=True)

        folder = os.path.join(settings.data_root, settings.data_name)
        ensure_demo(folder, progress=announce)


def prepare_host(settings, local_rank):
    """Sets up this host before Horovod is started."""
    share_cores(os.environ)
    name_interfaces(os.environ)
    os.environ.setdefault("MXNET_SUBGRAPH_VERBOSE", "0")  # MXNet would print a line about oneDNN on every rank
    from partial_fc_mxnet.ops.device import sees_gpus

    if not sees_gpus():
        deterministic_allreduce(os.environ)
    # One rank of a host draws, for up to a minute, while the others wait in hvd.init(), over Gloo 30 s by default.
    # The watchdog, which can name the missing rank, has to time out first.
    os.environ.setdefault("HOROVOD_GLOO_TIMEOUT_SECONDS", "330")
    if local_rank == 0:
        draw_demo(settings)


def report(error, where=""):
    """Prints an error that refuses the training."""
    hint = ", run `bash setup-utils/install.sh` first" if isinstance(error, ModuleNotFoundError) else ""
    print(f"error{where}: {error}{hint}", file=sys.stderr, flush=True)


def end(error, is_reporter, rank_status):
    """Exits this rank; prints the error unless another rank does."""
    release_signals()
    if not is_reporter:
        # The reporter may be the slowest rank. If it reports nothing within this time, the error is not its own:
        # the config.py or a library of this rank's host differs.
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline and not rank_status.error_reported():
            time.sleep(0.1)
    if rank_status.claim_error_report():
        report(error, "" if is_reporter else f" on rank {rank_info(os.environ).rank}")
        time.sleep(0.3 if rank_status.rank == 0 else 0)  # for the other ranks to see the claim
    rank_status.leave()
    sys.exit(REFUSED)


def likely_root(argv):
    """The folder of the other ranks' status store, for a rank that cannot load its settings."""
    given = [argument.split("=", 1)[1] for argument in argv if argument.startswith(("models_root=", "--models-root="))]
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), os.path.expanduser((given or ["models"])[-1]))


def main(argv=None):
    """Runs this rank; returns if all went well."""
    block_signals()
    try:
        run_rank(sys.argv[1:] if argv is None else argv)
    except (Exception, KeyboardInterrupt) as error:
        # A library that is interrupted while it loads may raise an error of its own.
        if not any(isinstance(cause, KeyboardInterrupt) for cause in (error, error.__context__)):
            raise
        print("interrupted", file=sys.stderr, flush=True)
        os._exit(130)  # not sys.exit: Horovod's exit handler would wait for the other ranks


def run_rank(argv):
    """Loads the settings, prepares the host, starts Horovod and trains."""
    ranks = rank_info(os.environ)
    try:
        args = parse_args(argv)
        settings = load_settings(args)
    except (ValueError, OSError, ImportError) as error:
        if ranks.size == 1:
            report(error)
            sys.exit(REFUSED)
        rank_status = RankStatusStore(likely_root(argv), job_key(os.environ, os.getpid()), ranks.rank).open()
        end(error, ranks.rank == 0, rank_status)  # all ranks read the same command line
    if args.print_config:
        if ranks.rank == 0:
            print(to_json(settings), end="")
        return
    watchdog = Watchdog(ranks, settings.models_root, os.environ)
    watchdog.start()
    try:
        prepare_host(settings, ranks.local_rank)
    except (ValueError, OSError, ImportError) as error:
        end(error, ranks.local_rank == 0, watchdog.rank_status)
    import horovod.mxnet as hvd

    from partial_fc_mxnet import collectives

    work = choose_work(args, settings)
    collectives.guarded_by(watchdog)
    with collectives.waiting("Horovod's start"):
        hvd.init()
    collectives.run(work)


if __name__ == "__main__":
    main()
