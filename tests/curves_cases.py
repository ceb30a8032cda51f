"""Curves for TensorBoard on a disk that is full, with the writer of either framework."""

import time
from contextlib import closing

from partial_fc.training.events import Curves
from small_disk import fill, small_disk


def check_full_disk(open_writer, tmp_path, capfd):
    """The folder is named once; add_scalar and close return, although the library's thread has ended."""
    with small_disk(tmp_path / "disk", "64k") as disk:
        with closing(Curves(str(disk / "curves"), open_writer)) as curves:
            curves.add_scalar("loss", 2.5, 0)
            while not any(file.stat().st_size for file in disk.rglob("*tfevents*")):
                time.sleep(0.01)  # the first value is written by a thread
            fill(disk)
            start = time.monotonic()
            for update in range(3000):
                curves.add_scalar("loss" * 20, 2.5, update)
        errors = capfd.readouterr().err
        assert time.monotonic() - start < 20
        assert errors.count("\n") == 1 and str(disk / "curves") in errors and "No space left" in errors, errors
