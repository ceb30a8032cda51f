"""Where a resumed training continues in its data."""

from types import SimpleNamespace

import numpy as np
import pytest

from partial_fc.training.saved_training import SavedTraining


@pytest.mark.parametrize(
    "state, class_map, position",
    [
        ({"data": {"epoch": 3, "images": 500}}, None, (3, 500)),
        ({"data": {"epoch": 3, "images": 500}}, np.arange(5), (4, 0)),  # other data, which start with their next epoch
        ({}, None, (0, 0)),
    ],
)
def test_the_place_in_the_data(state, class_map, position):
    manifest = SimpleNamespace(state=state, origin={})
    assert SavedTraining("step-0000000035", manifest, class_map).position == position
