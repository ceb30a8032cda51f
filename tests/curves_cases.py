"""Test cases for the TensorBoard writers of both frameworks."""

import os
import re
import time
from contextlib import closing

from partial_fc.training.trackers import build_trackers
from small_disk import fill, small_disk


def check_full_disk(open_writer, tmp_path, capfd):
    """On a full disk, one message names the folder, log and close return, and other trackers continue."""
    with small_disk(tmp_path / "disk", "64k") as disk:
        with closing(build_trackers(["tensorboard", "curves_cases:Counter"], {}, open_writer)) as trackers:
            trackers.log({"loss": 2.5}, 0)
            trackers.begin(str(disk), {})
            while not any(file.stat().st_size for file in disk.rglob("*tfevents*")):
                time.sleep(0.01)  # until a thread has written the first value
            fill(disk)
            start = time.monotonic()
            for update in range(3000):
                trackers.log({"loss" * 20: 2.5}, update)
        errors = capfd.readouterr().err
        assert time.monotonic() - start < 20
        assert errors.count("\n") == 1 and str(disk) in errors and "No space left" in errors, errors
        assert Counter.count == 3001 and os.path.exists(disk / "run_id")


def check_drawn_names(open_writer, folder):
    """File names are random, so nobody can place a link at a file's path in advance."""
    for _ in range(2):
        open_writer(str(folder), 0).close()
    endings = {path.name.rpartition(".")[2] for path in folder.iterdir()}
    assert len(endings) == 2 and all(re.fullmatch("[0-9a-f]{8}", ending) for ending in endings)


class Counter:
    """A user's tracker."""

    count = 0

    def begin(self, run):
        Counter.count = 0

    def log(self, values, num_update):
        Counter.count += 1

    def close(self):
        pass
