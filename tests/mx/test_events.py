"""Curves written by mxboard."""

from functools import partial

from mxboard.proto.event_pb2 import Event, SessionLog

from curves_cases import check_drawn_names, check_full_disk
from partial_fc_mxnet.build import MXNetFramework


def test_a_full_disk_ends_the_curves_alone(tmp_path, capfd):
    check_full_disk(partial(MXNetFramework.open_writer, None), tmp_path, capfd)


def test_a_resumed_training_hides_the_points_that_come_again(tmp_path):
    MXNetFramework.open_writer(None, str(tmp_path), 5).close()
    (file,) = tmp_path.iterdir()
    for event in (Event(step=5, file_version="brain.Event:2"), Event(step=5, session_log=SessionLog(status=1))):
        assert event.SerializeToString() in file.read_bytes()


def test_names_of_files_are_drawn(tmp_path):
    check_drawn_names(partial(MXNetFramework.open_writer, None), tmp_path)
