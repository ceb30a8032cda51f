"""Trains a face-recognition embedding with Partial FC.

One rank:    python train_memory.py
Two ranks:   bash run.sh, or horovodrun -np 2 -H localhost:2 bash config.sh
Is it IO?    the same with --profile-io: trains nothing, measures whether reading is the brake
"""

import argparse
import math
import os
import sys
import time

from partial_fc.distributed import env as launch
from partial_fc.distributed.rank_status import RankStatusStore, job_key
from partial_fc.distributed.watchdog import REFUSED, Watchdog, block_signals, release_signals


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that leaves it to main() who tells of an error: all ranks read the same command line."""

    def error(self, message):
        raise ValueError(f"{message}; see python train_memory.py --help")

    def print_help(self, file=None):
        if launch.place(os.environ).rank == 0:
            super().print_help(file)


def parse_args(argv):
    """What stands on the command line."""
    import default

    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", help="one of " + ", ".join(default.dataset))
    parser.add_argument("--loss", help="one of " + ", ".join(default.loss))
    parser.add_argument("--network", help="one of " + ", ".join(default.network))
    parser.add_argument("--models-root", help="folder of the outputs")
    parser.add_argument("--resume", metavar="auto|PATH", help="go on from the newest checkpoint, if any, or from this")
    parser.add_argument("--pretrained", metavar="PATH", help="begin with the weights of a checkpoint or .params file")
    parser.add_argument("--class-map", metavar="same|FILE", help="take class centers too: which class is which")
    parser.add_argument("--profile-io", action="store_true", help="measure whether reading is the brake, do not train")
    parser.add_argument("--profile-seconds", type=float, metavar="S", help="length of each of its three phases (8)")
    parser.add_argument("settings", nargs="*", metavar="name=value", help="any setting of default.py")
    words = parser.parse_intermixed_args(argv)
    seconds = words.profile_seconds
    if seconds is not None and not (words.profile_io and 0 < seconds < math.inf):
        parser.error(f"--profile-seconds is {seconds}, but must be above 0 and go with --profile-io")
    return words


def read_settings(words):
    """Reads the words of the command line into ``default.config`` and returns that."""
    import default
    from partial_fc.utils.config import parse_assignments

    changes = parse_assignments(words.settings)
    for name in ("models_root", "resume", "pretrained", "class_map"):
        if getattr(words, name) is not None:
            changes[name] = getattr(words, name)
    return default.generate_config(words.loss, words.dataset, words.network, changes)


def choose_work(words, settings):
    """What this rank is to do once Horovod has been started."""
    if words.profile_io:
        from partial_fc_mxnet.io_profile import SECONDS, profile

        return lambda: profile(settings, words.profile_seconds or SECONDS)
    from partial_fc_mxnet.trainer import train

    return lambda: train(settings)


def draw_demo(settings):
    """Draws the demo's faces, where that is what is trained on and they are not there yet."""
    if settings.dataset == "demo" and not settings.debug and not settings.rec:
        from partial_fc.data.synthetic import ensure_demo

        def tell(done, total):
            if done == 1:
                print(f"Drawing {total} faces into {folder}, once; this takes about a minute.", flush=True)

        folder = os.path.join(settings.data_root, settings.data_name)
        ensure_demo(folder, progress=tell)


def prepare_host(settings, local_rank):
    """What each host needs before Horovod is started."""
    launch.share_cores(os.environ)
    launch.name_interfaces(os.environ)
    os.environ.setdefault("MXNET_SUBGRAPH_VERBOSE", "0")  # MXNet would print a line about oneDNN on every rank
    from partial_fc_mxnet.ops.device import sees_gpus

    if not sees_gpus():
        launch.deterministic_allreduce(os.environ)
    # One rank of a host draws, a minute at most; the others wait in hvd.init(), over Gloo 30 s by default. The
    # watchdog, which can name the rank that is missing, is to be the first to lose patience.
    os.environ.setdefault("HOROVOD_GLOO_TIMEOUT_SECONDS", "330")
    if local_rank == 0:
        draw_demo(settings)


def end(error, telling, board):
    """Ends this rank with the error's sentence, unless another one tells it."""
    release_signals()
    if not telling:
        # The one that tells may be the slowest to get here. After this time the error is none of its: this rank has
        # a config.py or a library of its own.
        late = time.monotonic() + 5
        while time.monotonic() < late and not board.told():
            time.sleep(0.1)
    if board.claim_error_report():
        hint = ", run `bash setup-utils/install.sh` first" if isinstance(error, ModuleNotFoundError) else ""
        where = "" if telling else f" on rank {launch.place(os.environ).rank}"
        print(f"error{where}: {error}{hint}", file=sys.stderr, flush=True)
        time.sleep(0.3 if board.rank == 0 else 0)  # the others are to see it there
    board.leave(-1, "its settings")
    sys.exit(REFUSED)


def likely_root(argv):
    """Where the others have their notice board, for a rank that cannot read its own settings."""
    given = [word.split("=", 1)[1] for word in argv if word.startswith(("models_root=", "--models-root="))]
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), os.path.expanduser((given or ["models"])[-1]))


def main(argv=None):
    """Runs this rank; returns when all has ended well."""
    block_signals()
    try:
        run_rank(sys.argv[1:] if argv is None else argv)
    except (Exception, KeyboardInterrupt) as error:
        # Libraries that are interrupted while they load may say so with an error of their own.
        if not any(isinstance(cause, KeyboardInterrupt) for cause in (error, error.__context__)):
            raise
        print("interrupted", file=sys.stderr, flush=True)
        os._exit(130)  # not sys.exit: Horovod's own ending would wait for the other ranks


def run_rank(argv):
    """Reads the command line, prepares the host, starts Horovod and does the work. From then on job.run ends it."""
    place = launch.place(os.environ)
    try:
        words = parse_args(argv)
        settings = read_settings(words)
    except (ValueError, OSError, ImportError) as error:
        board = RankStatusStore(likely_root(argv), job_key(os.environ, os.getpid()), place.rank)
        end(error, place.rank == 0, board)  # all ranks read the same words
    watchdog = Watchdog(place, settings.models_root, os.environ)
    watchdog.start()
    try:
        prepare_host(settings, place.local_rank)
    except (ValueError, OSError, ImportError) as error:
        end(error, place.local_rank == 0, watchdog.board)
    import horovod.mxnet as hvd

    from partial_fc_mxnet import collectives

    work = choose_work(words, settings)
    collectives.guarded_by(watchdog)
    with collectives.waiting("Horovod's start"):
        hvd.init()
    collectives.run(work)


if __name__ == "__main__":
    main()
