"""Runs a trainer with a fault:  python with_fault.py FAULT RANK PLACE MARK -- arguments

Runs train.py under torchrun, otherwise train_memory.py. When RANK reaches PLACE, it writes the time to the file MARK
and runs the function FAULT. A number is the place after that update; install() has the other places.
"""

import errno
import importlib
import os
import signal
import sys
import time
from pathlib import Path

from partial_fc.distributed.env import rank_info, share_cores
from partial_fc.distributed.signals import block_signals

TORCH = "TORCHELASTIC_RUN_ID" in os.environ


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def stop():
    os.kill(os.getpid(), signal.SIGSTOP)


def ask_to_stop():
    os.kill(os.getpid(), signal.SIGUSR1)  # under mpirun, SIGTERM is not a request to stop
    time.sleep(0.5)  # until a thread has received it


def hang():
    while True:
        time.sleep(1)


def late():
    time.sleep(3)


def leave():
    time.sleep(1.5)  # until the other ranks have started, but not yet imported their framework
    os._exit(3)


def fail():
    raise RuntimeError("a bug for this test")


def no_room():
    raise OSError(errno.ENOSPC, "cannot use a file of this test: No space left on device")


def models():
    """The folder of the outputs."""
    return Path(next(argument.split("=")[1] for argument in sys.argv if argument.startswith("models_root=")))


def fill():
    """Fills the disk of the outputs up to FREE_BYTES bytes."""
    disk = os.statvfs(models())
    Path(models(), "filler").write_bytes(bytes(disk.f_bavail * disk.f_frsize - int(os.environ["FREE_BYTES"])))


def once_saved(fault):
    """Returns the fault, which now waits until there is a complete checkpoint."""

    def changed():
        if list(models().glob("*/checkpoints/step-*[0-9]/manifest.json")):
            fault()

    return changed


def before(owner, name, fault):
    """Runs the fault before a function."""
    original = getattr(owner, name)

    def changed(*args, **kwargs):
        fault()
        return original(*args, **kwargs)

    setattr(owner, name, changed)


def after_update(number, fault):
    """Runs the fault after the first callback of an update."""
    if TORCH:
        from partial_fc_torch.collectives import default_collectives
    else:
        from partial_fc_mxnet.collectives import default_collectives
    report_progress = default_collectives.report_progress

    def changed(num_update=None):
        report_progress(num_update)
        if num_update == number:
            fault()

    default_collectives.report_progress = changed


def install(name, place, fault):
    """Installs the fault at a place on this rank."""
    if place == "start":
        fault()
    block_signals()  # before the framework is imported
    share_cores(os.environ)
    from partial_fc.data.prefetch import Prefetcher
    from partial_fc.data.training_data import DataLoader
    from partial_fc.training import building, checkpointing, saving, trainer
    from partial_fc.training.embedder import Embedder

    if name == "other_code":
        building.code_digest = lambda roots: "another"
    if name == "other_data":
        DataLoader.digest = "another"
    if place.startswith("save."):
        fault = once_saved(fault)
    if place.isdigit():
        after_update(int(place), fault)
    elif place != "start":
        functions = {
            "reading": (Prefetcher, "get"),
            "evaluation": (Embedder, "__call__"),
            "export": (saving.SaveCallback, "save"),
            "results": (trainer.Trainer, "_write_results"),
            "save.copy": (checkpointing, "_files"),
            "save.write": (checkpointing, "write_file"),
        }
        before(*functions[place], fault)


def main():
    """Runs the trainer with the arguments, and the fault on its rank."""
    name, rank, place, mark, _, *arguments = sys.argv[1:]

    def fault():
        Path(mark).write_text(str(time.time()))
        globals().get(name, lambda: None)()

    if rank_info(os.environ).rank == int(rank):
        arguments += {"other_seed": ["seed=7"], "broken_settings": ["seed=many"]}.get(name, [])
        install(name, place, fault)
    importlib.import_module("train" if TORCH else "train_memory").main(arguments)


if __name__ == "__main__":
    main()
