"""The recipes that train on a CPU make a few updates on a set of noise."""

import json

import cv2
import numpy as np
import pytest
from conftest import CLASSES, IN_TURN, needs_torch

from partial_fc.data.face_records import write_face_set

# Recipe -> (side of an image, processes).
RECIPES = {"demo": (112, 1), "glyphs_small": (64, 1), "glyphs_vit": (64, 2), "glyphs_mbf_adamw": (64, 1)}
UPDATES = 3


def write_noise(folder, side):
    """Writes a set of two images of each class; returns the path of its train.rec."""
    images = np.random.default_rng(0).integers(0, 256, (CLASSES, 2, side, side, 3), np.uint8)
    encoded = [[cv2.imencode(".jpg", image)[1].tobytes() for image in identity] for identity in images]
    write_face_set(str(folder), encoded, (side, side))
    return folder / "train.rec"


@pytest.mark.slow
@needs_torch
def test_recipes_for_a_cpu_train(succeed, tmp_path):
    small = f"num_classes={CLASSES} batch_size=4 max_update={UPDATES} val_targets=[]"
    jobs = [
        f"{ranks} train_v2 configs/{name} {small} rec={write_noise(tmp_path / f'of_{name}', side)} "
        f"output={tmp_path / name}"
        for name, (side, ranks) in RECIPES.items()
    ]
    succeed(*IN_TURN, " -- ".join(jobs))
    for name, (_, ranks) in RECIPES.items():
        summary = json.loads((tmp_path / name / "summary.json").read_text())
        assert (summary["updates"], summary["ranks"]) == (UPDATES, ranks), name
        settings = json.loads((tmp_path / name / "settings.json").read_text())
        assert settings["schedule"] == "polynomial" and np.isfinite(summary["final_loss"]), name
