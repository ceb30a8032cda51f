"""Curves written by torch.utils.tensorboard."""

from functools import partial

from curves_cases import check_drawn_names, check_full_disk
from partial_fc_torch.build import TorchFramework


def test_a_full_disk_ends_only_the_curves(tmp_path, capfd):
    check_full_disk(partial(TorchFramework.open_writer, None), tmp_path, capfd)


def test_names_of_files_are_drawn(tmp_path):
    check_drawn_names(partial(TorchFramework.open_writer, None), tmp_path)
