"""The output folder of a training."""

import pytest

import default
from partial_fc.training.run_folder import output_folder


@pytest.mark.parametrize(
    "changes, folder",
    [
        ({}, "models/r50-cosface-demo"),
        ({"models_root": "/shared"}, "/shared/r50-cosface-demo"),
        ({"output": "ms1mv3_arcface_r50"}, "ms1mv3_arcface_r50"),
        ({"output": "/shared/own", "models_root": "/elsewhere"}, "/shared/own"),
    ],
)
def test_output_wins_over_models_root(changes, folder):
    settings = default.generate_config("cosface", None, "r50", changes, trainer="torch")
    assert output_folder(settings) == default.absolute(folder)
