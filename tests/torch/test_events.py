"""Curves written by torch.utils.tensorboard."""

from functools import partial

from curves_cases import check_full_disk, check_names
from partial_fc_torch.build import TorchFramework


def test_a_full_disk_ends_the_curves_alone(tmp_path, capfd):
    check_full_disk(partial(TorchFramework.open_writer, None), tmp_path, capfd)


def test_the_name_of_a_file_of_events_cannot_be_foreseen(tmp_path):
    check_names(partial(TorchFramework.open_writer, None), tmp_path)
