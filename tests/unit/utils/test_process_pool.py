"""The map over processes, and results that appear only whole."""

import os
import time
from functools import partial

import pytest

from partial_fc.utils.process_pool import AHEAD, in_chunks, ordered_map
from partial_fc.utils.staging import amount, staged_files, staged_folder


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


def test_a_stage_is_its_makers_alone(tmp_path):
    """Containers that share a folder have the same process ids: no stage may be taken for one's own and removed."""
    other = tmp_path / f".face_sets-{os.getpid()}"
    other.mkdir()
    (other / "train.rec.part").touch()
    with staged_files(tmp_path, ["a"], False) as one, staged_files(tmp_path, ["b"], False) as two:
        assert one != two
        for stage, name in ((one, "a"), (two, "b")):
            open(os.path.join(stage, name), "w").close()
    with staged_folder(tmp_path / "tree"):
        pass
    assert sorted(os.listdir(tmp_path)) == [other.name, "a", "b", "tree"] and os.listdir(other) == ["train.rec.part"]


def test_results_have_the_permissions_of_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        with staged_folder(tmp_path / "tree"):
            pass
    finally:
        os.umask(before)
    assert (tmp_path / "tree").stat().st_mode & 0o777 == 0o750


@pytest.mark.parametrize("staged", [lambda path: staged_files(path, ["a"], False), staged_folder])
def test_a_full_disk_names_the_folder_and_the_mend(tmp_path, staged):
    with pytest.raises(OSError, match="/out cannot be written: No space left on device: free space there, or name"):
        with staged(str(tmp_path / "out")), open("/dev/full", "wb", buffering=0) as full:
            full.write(b"x")
    with pytest.raises(FileNotFoundError, match="elsewhere"):  # not of writing: left as it is
        with staged(str(tmp_path / "out")):
            open(tmp_path / "elsewhere")
    assert os.listdir(tmp_path) == []
