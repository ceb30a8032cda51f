"""Trains a face-recognition embedding with Partial FC.

One rank:    python train_memory.py
Two ranks:   bash run.sh, or horovodrun -np 2 -H localhost:2 bash config.sh
"""

import argparse
import os
import sys

from partial_fc import launch


def read_settings(argv):
    """Reads the command line into ``default.config`` and returns that."""
    import default
    from partial_fc.settings import parse_assignments

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", help="one of " + ", ".join(default.dataset))
    parser.add_argument("--loss", help="one of " + ", ".join(default.loss))
    parser.add_argument("--network", help="one of " + ", ".join(default.network))
    parser.add_argument("--models-root", help="folder of the outputs")
    parser.add_argument("settings", nargs="*", metavar="name=value", help="any setting of default.py")
    args = parser.parse_args(argv)
    changes = parse_assignments(args.settings)
    if args.models_root is not None:
        changes["models_root"] = os.path.abspath(args.models_root)
    return default.generate_config(args.loss, args.dataset, args.network, changes)


def draw_demo(settings):
    """Draws the demo's faces, where that is what is trained on and they are not there yet."""
    if settings.dataset == "demo" and not settings.debug and settings.rec is None:
        from partial_fc.synthetic_faces import ensure_demo

        ensure_demo(os.path.join(settings.data_root, settings.data_name))


def prepare(argv, place):
    """Everything that comes before Horovod is started; returns the settings."""
    settings = read_settings(argv)
    launch.share_cores(os.environ)
    os.environ.setdefault("MXNET_SUBGRAPH_VERBOSE", "0")  # MXNet would print a line about oneDNN on every rank
    # One rank of a host draws: the others wait for it in hvd.init().
    if place.local_rank == 0:
        draw_demo(settings)
    import partial_fc_mxnet  # noqa: F401  says what to run where MXNet or Horovod is missing

    return settings


def main(argv=None):
    """Runs this rank of the training; returns when it has ended well."""
    place = launch.place(os.environ)
    try:
        settings = prepare(argv, place)
    except (ValueError, OSError, ImportError) as error:
        # All ranks read the same words and one is enough to tell; only the drawing is local_rank 0's own.
        if place.local_rank == 0 and (place.rank == 0 or isinstance(error, OSError)):
            hint = ", run `bash setup-utils/install.sh` first" if isinstance(error, ModuleNotFoundError) else ""
            print(f"error: {error}{hint}", file=sys.stderr, flush=True)
        sys.exit(2)
    import horovod.mxnet as hvd

    from partial_fc_mxnet import job
    from partial_fc_mxnet.trainer import train

    hvd.init()
    job.run(lambda: train(settings))


if __name__ == "__main__":
    main()
