"""The model format of a checkpoint, as its manifest has it."""

from types import SimpleNamespace

import pytest

from partial_fc.checkpoint import ModelFormat
from partial_fc.checkpoint.model_format import MXNET, TORCH


def of(state, origin=()):
    return ModelFormat.of("models/step-7", SimpleNamespace(state=state, origin=origin))


def test_saved_conventions():
    saved = ModelFormat(1e-3, 127.5, "steps")
    assert of({"conventions": saved.to_json()}) == saved


def test_a_checkpoint_without_conventions_has_its_trainers():
    assert of({}, {"version of mxnet": "1.9.1"}) == MXNET
    assert of({}, {"version of torch": "2.13"}) == TORCH


@pytest.mark.parametrize("saved", [{}, 3, {"eps": None, "pixel_scale": 1, "sums_gradients": True}, {"eps": 1e-5}])
def test_unknown_conventions_are_refused(saved):
    with pytest.raises(ValueError, match="models/step-7: its conventions are .*, expected eps, pixel_scale, sums_grad"):
        of({"conventions": saved})
