"""The history of a validation set: the best point, a repeated update, and what a checkpoint holds of it."""

import json

import pytest

from partial_fc.evaluation.verification import VerificationPoint
from partial_fc.training.saving import onnx_metadata
from partial_fc.training.verification_history import add_point, best_accuracy, points_from_json, write_point


def point(num_update, accuracy=0.5):
    return VerificationPoint(num_update, accuracy, 0.01, 1.25, 0.9, 1e-3, 20.0, 14.0, 0.95, 2.0)


@pytest.mark.parametrize(
    "accuracies, best", [({0: 0.7}, 0.7), ({0: 0.7, 5: 0.6, 10: 0.5}, 0.6), ({5: 0.4, 9: 0.8}, 0.8)]
)
def test_the_untrained_network_is_the_best_only_if_it_is_alone(accuracies, best):
    assert best_accuracy([point(update, accuracy) for update, accuracy in accuracies.items()]) == best


def test_a_point_replaces_the_last_one_of_the_same_update():
    points = [point(5, 0.4), point(10, 0.5)]
    add_point(points, point(10, 0.6))
    add_point(points, point(15, 0.7))
    assert points == [point(5, 0.4), point(10, 0.6), point(15, 0.7)]


def test_points_round_trip_through_json_without_those_of_other_versions():
    saved = json.loads(json.dumps([[4, 0.99], point(5), point(10)]))
    assert points_from_json(saved) == [point(5), point(10)]


class Writer(dict):
    """Stands for a writer of TensorBoard events."""

    def add_scalar(self, tag, value, num_update):
        self[tag, num_update] = value


def test_every_metric_is_written():
    writer = Writer()
    write_point(writer, "set", point(7, 0.6), best=0.8)
    names = ("accuracy", "std", "best", "threshold", "tar_at_far", "xnorm", "dimensions", "agreement", "seconds")
    assert set(writer) == {(f"verification/set/{name}", 7) for name in names}
    assert (writer["verification/set/accuracy", 7], writer["verification/set/best", 7]) == (0.6, 0.8)


@pytest.mark.parametrize("num_update, has_threshold", [(5, False), (10, True), (0, False)])
def test_the_onnx_file_has_the_threshold_of_a_verification_at_the_same_update(num_update, has_threshold):
    origin = dict(network="r18", dataset="demo", loss="arcface", num_classes=7, sample_ratio=0.5, rand_mirror=True)
    history = {"empty": [], "first": [point(5), point(10)], "second": [point(10)]}
    metadata = onnx_metadata({**origin, "lr": 0.1}, history if num_update else {"first": [point(0)]}, num_update)
    threshold = {"verification_set": "first", "verification_threshold": "1.25"} if has_threshold else {}
    assert metadata == {
        **{name: str(value) for name, value in origin.items()},
        "num_update": str(num_update),
        **threshold,
    }
