"""The history of a validation set: a repeated update, and what a checkpoint holds of it."""

import json

import pytest

from made_up_training import point
from partial_fc.training.saving import onnx_metadata
from partial_fc.training.verifying import add_point, points_from_json


def test_a_point_replaces_the_last_one_of_the_same_update():
    points = [point(5, 0.4), point(10, 0.5)]
    add_point(points, point(10, 0.6))
    add_point(points, point(15, 0.7))
    assert points == [point(5, 0.4), point(10, 0.6), point(15, 0.7)]


def test_points_round_trip_through_json_without_those_of_other_versions():
    saved = json.loads(json.dumps([[4, 0.99], point(5), point(10)]))
    assert points_from_json(saved) == [point(5), point(10)]


@pytest.mark.parametrize("num_update, has_threshold", [(5, False), (10, True), (0, False)])
def test_the_onnx_file_has_the_threshold_of_a_verification_at_the_same_update(num_update, has_threshold):
    origin = dict(network="r18", dataset="demo", loss="arcface", num_classes=7, sample_ratio=0.5, rand_mirror=True)
    history = {"empty": [], "first": [point(5), point(10)], "second": [point(10)]}
    metadata = onnx_metadata({**origin, "lr": 0.1}, history if num_update else {"first": [point(0)]}, num_update)
    threshold = {"verification_set": "first", "verification_threshold": "1.2"} if has_threshold else {}
    assert metadata == {
        **{name: str(value) for name, value in origin.items()},
        "num_update": str(num_update),
        **threshold,
    }
