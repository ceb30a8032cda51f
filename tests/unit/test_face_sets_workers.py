"""The map over processes, results that appear only whole, and Ctrl-C."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial

import pytest

from partial_fc.face_sets.output import amount, staged_files, staged_folder
from partial_fc.face_sets.workers import AHEAD, in_chunks, ordered_map
from partial_fc.synthetic_faces.draw import encode_face


def square_slowly(number):
    time.sleep(0.02 if number % 5 == 0 else 0)  # later tasks finish before earlier ones
    return number * number


def fail_at(bad, how, number):
    if number == bad:
        how(number)
    return number


def die(number):
    os._exit(3)


def complain(number):
    raise ValueError(f"{number} is bad")


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_order_and_tasks_are_drawn_as_there_is_room(workers):
    drawn = []

    def tasks():
        for number in range(60):
            drawn.append(number)
            yield number

    done = 0
    for number, square in ordered_map(square_slowly, tasks(), workers):
        assert (number, square) == (done, done * done)
        done += 1
        assert len(drawn) <= done + AHEAD * workers + 1
    assert done == 60


def test_one_task_starts_no_process_and_none_is_fine():
    assert list(ordered_map(lambda task: os.getpid(), [7], 4)) == [(7, os.getpid())]
    assert list(ordered_map(square_slowly, [], 4)) == []


def test_an_error_in_a_worker_is_raised_here():
    with pytest.raises(ValueError, match="9 is bad"):
        list(ordered_map(partial(fail_at, 9, complain), range(30), 2))


def test_a_worker_that_dies_gives_a_sentence():
    with pytest.raises(OSError, match="a worker process died without a word .*fewer --workers"):
        list(ordered_map(partial(fail_at, 9, die), range(1000), 2))


def test_chunks():
    assert list(in_chunks(iter(range(5)), 2)) == [[0, 1], [2, 3], [4]] and list(in_chunks([], 2)) == []


def test_files_appear_only_together_and_replace_others_only_if_forced(tmp_path):
    out = str(tmp_path / "new" / "out")

    def write(text, force=False, fail=False):
        with staged_files(out, ["b", "a"], force) as stage:
            for name in "ab":
                with open(os.path.join(stage, name), "w") as file:
                    file.write(text)
            if fail:
                raise KeyboardInterrupt

    def read():
        return {name: open(os.path.join(out, name)).read() for name in os.listdir(out)}

    with pytest.raises(KeyboardInterrupt):
        write("0", fail=True)
    assert not os.path.exists(out)
    write("1")
    assert read() == {"a": "1", "b": "1"}
    with pytest.raises(FileExistsError, match="out/b is there already: .*--force"):
        write("2")
    with pytest.raises(KeyboardInterrupt):
        write("2", force=True, fail=True)
    assert read() == {"a": "1", "b": "1"}
    write("2", force=True)
    assert read() == {"a": "2", "b": "2"}


def test_a_folder_appears_only_whole(tmp_path):
    with pytest.raises(KeyboardInterrupt), staged_folder(tmp_path / "x") as stage:
        open(os.path.join(stage, "a"), "w").close()
        raise KeyboardInterrupt
    assert os.listdir(tmp_path) == []
    with staged_folder(tmp_path / "x") as stage:
        open(os.path.join(stage, "a"), "w").close()
    assert os.listdir(tmp_path / "x") == ["a"]


def test_amounts():
    assert [amount(size) for size in (5, 1500, 2_000_000, 128e9, 3e15)] == [
        "5 bytes",
        "1.5 KB",
        "2.0 MB",
        "128.0 GB",
        "3000.0 TB",
    ]


def test_ctrl_c_ends_the_command_and_leaves_nothing(tmp_path):
    for person in range(3):
        (tmp_path / "tree" / str(person)).mkdir(parents=True)
    face = encode_face(6, 0, 0)
    # One file that is a pipe nobody writes to: the command is surely still at work when the interrupt comes.
    for image in range(200):
        (tmp_path / "tree" / "0" / f"{image}.jpg").write_bytes(face)
    os.mkfifo(tmp_path / "tree" / "1" / "pipe.jpg")
    (tmp_path / "tree" / "2" / "0.jpg").write_bytes(face)
    command = [sys.executable, "-m", "partial_fc.face_sets", "pack", "tree", "out", "--workers", "2"]
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    child = subprocess.Popen(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": root},
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
        # Where the tests run in a shell's background, they and their children ignore the interrupt.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        deadline = time.time() + 30
        while not (tmp_path / "out").exists() and time.time() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)
        os.killpg(child.pid, signal.SIGINT)  # as a terminal does: to all processes
        time.sleep(0.2)
        # Lets the worker that waits for the pipe end its chunk; there may be none on a busy machine.
        with suppress(OSError):
            os.close(os.open(tmp_path / "tree" / "1" / "pipe.jpg", os.O_WRONLY | os.O_NONBLOCK))
        _, errors = child.communicate(timeout=30)
    finally:
        child.kill()
    assert (child.returncode, errors) == (130, "interrupted\n")
    assert os.listdir(tmp_path) == ["tree"]
