"""Curves written by mxboard."""

from functools import partial

from mxboard.proto.event_pb2 import Event, SessionLog

from curves_cases import check_full_disk, check_names
from partial_fc_mxnet.build import MXNetFramework


def test_a_full_disk_ends_the_curves_alone(tmp_path, capfd):
    check_full_disk(partial(MXNetFramework.open_writer, None), tmp_path, capfd)


def test_the_name_of_a_file_of_events_cannot_be_foreseen(tmp_path):
    check_names(partial(MXNetFramework.open_writer, None), tmp_path)


def test_a_resumed_training_hides_the_points_that_come_again(tmp_path):
    MXNetFramework.open_writer(None, str(tmp_path), 5).close()
    (file,) = tmp_path.iterdir()
    for event in (Event(step=5, file_version="brain.Event:2"), Event(step=5, session_log=SessionLog(status=1))):
        assert event.SerializeToString() in file.read_bytes()
