"""Event files for TensorBoard, as TensorBoard itself reads them."""

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.util.tensor_util import make_ndarray

from partial_fc.training.events import EventFile


def test_tensorboard_reads_what_was_written(tmp_path):
    """Its reader compares the checksums; a tag and a step need one or several bytes of a number."""
    written = [
        ("loss", 2.5, 1),
        ("verification/demo_val/" + "long" * 60, -0.125, 127),
        ("seconds_left", 1e9, 5_000_000),
    ]
    events = EventFile(str(tmp_path / "tensorboard"))
    for value in written:
        events.add_scalar(*value)
    events.close()
    (path,) = (tmp_path / "tensorboard").glob("events.out.tfevents.*")
    first, *others = EventFileLoader(str(path)).Load()
    assert first.file_version == "brain.Event:2" and first.wall_time > 1e9
    found = [
        (value.tag, float(make_ndarray(value.tensor)), event.step) for event in others for value in event.summary.value
    ]
    assert found == [(tag, pytest.approx(value), step) for tag, value, step in written]
