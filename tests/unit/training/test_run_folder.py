"""The output folder of a training."""

from types import SimpleNamespace

import pytest

import default
from partial_fc.training.run_folder import RunFolder, output_folder


@pytest.mark.parametrize(
    "changes, folder",
    [
        ({}, "models/r50-cosface-demo"),
        ({"models_root": "/shared"}, "/shared/r50-cosface-demo"),
        ({"output": "ms1mv3_arcface_r50"}, "ms1mv3_arcface_r50"),
        ({"output": "/shared/own", "models_root": "/elsewhere"}, "/shared/own"),
        ({"output": "models/own/"}, "models/own"),  # as a shell completes it
    ],
)
def test_output_wins_over_models_root(changes, folder):
    settings = default.generate_config("cosface", None, "r50", changes, trainer="torch")
    assert output_folder(settings) == default.absolute(folder)


def test_of_two_trainings_that_start_together_one_is_refused(tmp_path):
    def open_folder():
        return RunFolder(str(tmp_path), 0, 10, 0, lambda folder: SimpleNamespace(close=lambda: None))

    with open_folder():
        with pytest.raises(OSError, match=f"another training is writing to {tmp_path}: wait until it ends"):
            open_folder().__enter__()
    with open_folder():  # the refused one holds nothing
        pass
