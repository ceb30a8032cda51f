"""Curves written by mxboard."""

from curves_cases import check_full_disk
from partial_fc_mxnet.build import MXNetFramework


def test_a_full_disk_ends_the_curves_alone(tmp_path, capfd):
    check_full_disk(lambda folder: MXNetFramework.open_writer(None, folder), tmp_path, capfd)
