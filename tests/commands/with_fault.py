"""train_memory.py with a fault built in:  python with_fault.py FAULT RANK PLACE MARK -- words

FAULT is what RANK does when it comes to PLACE; MARK is a file into which it writes the time of this. A number is the
place after that update; the others are in install().
"""

import errno
import os
import signal
import sys
import time
from pathlib import Path

from partial_fc.distributed import env as launch
from partial_fc.distributed.watchdog import block_signals


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def stop():
    os.kill(os.getpid(), signal.SIGSTOP)


def hang():
    while True:
        time.sleep(1)


def leave():
    time.sleep(1.5)  # until the others are there, but for MXNet
    os._exit(3)


def fail():
    raise RuntimeError("a defect that was built in")


def no_room():
    raise OSError(errno.ENOSPC, "cannot use a file of this test: No space left on device")


def models():
    """The folder of the outputs."""
    return Path(next(word.split("=")[1] for word in sys.argv if word.startswith("models_root=")))


def fill():
    """Leaves so many bytes on the disk of the outputs as FREE_BYTES says."""
    disk = os.statvfs(models())
    Path(models(), "filler").write_bytes(bytes(disk.f_bavail * disk.f_frsize - int(os.environ["FREE_BYTES"])))


def once_saved(fault):
    """The fault as soon as there is a checkpoint that may suffer from it."""

    def changed():
        if list(models().glob("*/checkpoints/step-*[0-9]/manifest.json")):
            fault()

    return changed


def before(owner, name, fault):
    """Puts the fault before a function."""
    original = getattr(owner, name)

    def changed(*args, **kwargs):
        fault()
        return original(*args, **kwargs)

    setattr(owner, name, changed)


def after_update(number, fault):
    """Puts the fault after the first callback of an update."""
    from partial_fc_mxnet import collectives

    alive = collectives.report_progress

    def changed(num_update=None):
        alive(num_update)
        if num_update == number:
            fault()

    collectives.report_progress = changed


def break_features(fault):
    """The features of this rank are not numbers."""
    from partial_fc_mxnet import SampleDistributeModule

    gather = SampleDistributeModule._gather_batch

    def changed(self, features, labels):
        fault()
        return gather(self, features * float("nan"), labels)

    SampleDistributeModule._gather_batch = changed


def use_other_code(fault):
    """The code of this rank has another digest."""
    from partial_fc_mxnet import trainer

    fault()
    trainer.code_digest = lambda roots: "another"


def read_other_data(fault):
    """The images of this rank are another set."""
    from partial_fc_mxnet import FaceImageIter

    fault()
    FaceImageIter.digest = "another"


def install(name, place, fault):
    """Builds the fault in at a place, on this rank."""
    if place == "start":
        fault()
    block_signals()  # before MXNet is imported
    launch.share_cores(os.environ)
    if name == "nan":
        return break_features(fault)
    if name == "other_code":
        return use_other_code(fault)
    if name == "other_data":
        return read_other_data(fault)
    if place.startswith("save."):
        fault = once_saved(fault)
    if place.isdigit():
        return after_update(int(place), fault)
    if place != "start":
        return before(*function_at(place), fault)


def function_at(place):
    """Its owner, and its name."""
    from partial_fc.checkpoint import CheckpointFolder
    from partial_fc.checkpoint import manager as folder
    from partial_fc_mxnet import FaceImageIter, checkpointing, trainer
    from partial_fc_mxnet.embedder import Embedder

    return {
        "reading": (FaceImageIter, "next"),
        "evaluation": (Embedder, "_embed_share"),
        "results": (trainer.Trainer, "_write_results"),
        "save.copy": (checkpointing, "_files"),
        "save.write": (checkpointing, "write_file"),
        "save.commit": (CheckpointFolder, "commit"),
        "save.manifest": (folder, "write_manifest"),
        "save.prune": (CheckpointFolder, "prune"),
    }[place]


def main():
    """Runs train_memory.main with the words, and the fault on its rank."""
    name, rank, place, mark, _, *words = sys.argv[1:]

    def fault():
        Path(mark).write_text(str(time.time()))
        globals().get(name, lambda: None)()

    if launch.place(os.environ).rank == int(rank):
        words += {"other_seed": ["seed=7"], "broken_settings": ["seed=many"]}.get(name, [])
        install(name, place, fault)
    import train_memory

    train_memory.main(words)


if __name__ == "__main__":
    main()
