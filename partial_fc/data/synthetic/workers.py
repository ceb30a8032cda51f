"""Draws many faces in child processes.

Not utils/process_pool.py, which uses `multiprocessing`: the caller may be a training with MPI and MXNet threads, where
fork is unsafe, and spawn would run the caller's main script again. A child reads its tasks from standard input and
writes each JPEG, preceded by its length, to standard output. Tasks are assigned in turn, so the order, and every byte,
is the same for any number of processes.
"""

from __future__ import annotations

import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import cv2

from .draw import encode_face

Task = tuple[int, int]  # (identity, image)
LENGTH = struct.Struct("<I")


def encode_faces(seed: int, tasks: Sequence[Task], workers: int) -> Iterator[bytes]:
    """Yields the JPEG files of all tasks, in their order. Raises OSError if a process dies."""
    if workers <= 1:
        yield from (encode_face(seed, identity, image) for identity, image in tasks)
        return
    children: list[subprocess.Popen] = []
    try:
        children.extend(_start(seed, tasks[first::workers]) for first in range(workers))
        for turn in range(len(tasks)):
            yield _receive(children[turn % workers])
    finally:
        for child in children:
            with child:  # closes its pipes and waits for its end
                child.kill()


def _start(seed: int, tasks: Sequence[Task]) -> subprocess.Popen:
    source_root = str(Path(__file__).resolve().parents[3])
    path = os.pathsep.join(filter(None, [source_root, os.environ.get("PYTHONPATH")]))
    child = subprocess.Popen(
        [sys.executable, "-c", f"from {__name__} import serve; serve()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,  # only the caller receives Ctrl-C, and ends its children
    )
    assert child.stdin is not None
    with suppress(BrokenPipeError), child.stdin:  # a child that has died is reported by _receive
        pickle.dump((seed, list(tasks)), child.stdin)
    return child


def _receive(child: subprocess.Popen) -> bytes:
    assert child.stdout is not None
    head = child.stdout.read(LENGTH.size)
    data = child.stdout.read(LENGTH.unpack(head)[0]) if len(head) == LENGTH.size else b""
    if not data:
        raise OSError(f"a process that draws faces ended early, exit code {child.wait()}: see its message above")
    return data


def serve() -> None:
    """Runs a child: draws its tasks until they are done or the reader has exited."""
    seed, tasks = pickle.load(sys.stdin.buffer)
    sink = sys.stdout.buffer
    cv2.setNumThreads(1)
    try:
        for identity, image in tasks:
            data = encode_face(seed, identity, image)
            sink.write(LENGTH.pack(len(data)) + data)
            sink.flush()
    except BrokenPipeError:
        # The reader has exited. Else the interpreter reports an error when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sink.fileno())
