"""train_memory.py with a fault built in:  python with_fault.py FAULT RANK PLACE MARK -- words

FAULT is what RANK does when it comes to PLACE; MARK is a file that it writes the time of this into. An update N is a
place, reached by the callbacks that follow it; so are the names in PLACES.
"""

import errno
import os
import signal
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[2] / "mxnet")]

from partial_fc import launch  # noqa: E402


def hang():
    while True:
        time.sleep(1)


def stop():
    os.kill(os.getpid(), signal.SIGSTOP)


def fail():
    raise RuntimeError("a fault that was built in")


def no_room():
    raise OSError(errno.ENOSPC, "cannot write shard-of-a-test: No space left on device")


FAULTS = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "hang": hang,
    "stop": stop,
    "fail": fail,
    "no_room": no_room,
    "leave": lambda: os._exit(3),
    "wait": lambda: time.sleep(6),
}


def before(module, name, fault):
    """Puts the fault before a function; it happens in the first call that `fault` lets it."""
    original = getattr(module, name)

    def changed(*args, **kwargs):
        fault()
        return original(*args, **kwargs)

    setattr(module, name, changed)


def install(place, fault):
    """Builds `fault` in at a place, on this rank."""
    if place == "start":
        fault()
    elif place == "init":
        import train_memory

        before(train_memory, "prepare_host", fault)
    elif place.isdigit():
        from partial_fc_mxnet import job

        alive = job.alive

        def changed(num_update=None):
            alive(num_update)
            if num_update == int(place):
                fault()

        job.alive = changed
    elif place == "reading":
        from partial_fc_mxnet.image_iter import FaceImageIter

        before(FaceImageIter, "next", fault)
    elif place == "evaluation":
        from partial_fc_mxnet.embedder import Embedder

        before(Embedder, "_embed_share", fault)
    elif place == "save.write":
        from partial_fc_mxnet import checkpointing

        before(checkpointing, "write_file", fault)
    elif place in ("save.commit", "save.prune"):
        from partial_fc.checkpoints import CheckpointFolder

        before(CheckpointFolder, place.split(".")[1], fault)
    elif place == "save.rename":
        from partial_fc.checkpoints import folder

        before(folder, "write_manifest", fault)
    else:
        raise ValueError(place)


def main():
    split = sys.argv.index("--")
    name, rank, place, mark = sys.argv[1:split]
    words = sys.argv[split + 1 :]

    def fault():
        Path(mark).write_text(str(time.time()))
        FAULTS[name]()

    if launch.place(os.environ).rank == int(rank):
        launch.share_cores(os.environ)
        install(place, fault)
    import train_memory

    train_memory.main(words)


if __name__ == "__main__":
    main()
