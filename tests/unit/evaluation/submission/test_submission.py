"""The rules of the masked-face challenge: a model that passes, and for each rule a model that fails only this rule."""

import os
import re
import subprocess
import sys

import model_changes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from command_line import exit_code
from partial_fc.evaluation.submission.check import check_submission
from partial_fc.evaluation.submission.rules import TRACKS
from paths import ROOT
from tiny_onnx import TinyModel

EASY = TRACKS["ms1m"]._replace(milliseconds=10_000)  # for busy machines
CFAT = TRACKS["cfat"]._replace(milliseconds=10_000)


def failing(folder, limits=EASY):
    """Returns the failed rules: name -> figure."""
    return {rule.name: rule.figure for rule in check_submission(str(folder), limits) if not rule.passed}


def test_tracks():
    """The limits of the challenge's own check."""
    assert {name: limits[1:3] for name, limits in TRACKS.items()} == {
        "ms1m": (512, 10),
        "glint": (1024, 20),
        "cfat": (512, 15),
        "unconstrained": (1024, 30),
    }
    assert {limits.megabytes for limits in TRACKS.values()} == {1024}
    assert [name for name, limits in TRACKS.items() if limits.custom_pixels] == ["cfat"]


@pytest.mark.parametrize("normalizes, text", [(True, "by the model"), (False, "(x - 127.5) / 127.5 before the model")])
def test_a_model_that_passes_all_rules(tmp_path, normalizes, text):
    path = TinyModel(normalizes=normalizes).write(tmp_path / "backbone.onnx")
    rules = check_submission(str(tmp_path), EASY)
    figures = {rule.name: rule.figure for rule in rules}
    assert all(rule.passed for rule in rules) and len(figures) == len(rules) == 15
    assert text in figures["normalization"] and "[1, 16] for one face" in figures["feature"]
    assert figures["size"].startswith(f"{os.path.getsize(path) / 2**20:.1f} MB")
    assert float(figures["time"].split()[0]) > 0 and re.search("on (CPU|CUDA)", figures["time"])


@pytest.mark.parametrize(
    "change, rule, text",
    [
        (
            model_changes.narrow_initializer,
            "weights",
            "1 tensors of less than 4 bytes per element, such as half of float16",
        ),
        (model_changes.leak, "together", "a batch of 8 differs from single faces by"),
        (model_changes.always_one, "together", "a batch of 8 faces returns shape [1, 16]"),
        (model_changes.three_dimensions, "feature", "[1, 4, 4] for one face; at most [1, 512]"),
        (model_changes.seven_nodes, "nodes", "7, at least 8"),
        (model_changes.second_output, "output", "embedding ['batch', 16], flat ['batch', 588]; expected one"),
    ],
)
def test_a_change_fails_one_rule(tmp_path, change, rule, text):
    model = TinyModel()
    change(model)
    model.write(tmp_path / "backbone.onnx")
    failed = failing(tmp_path)
    assert list(failed) == [rule] and text in failed[rule]


def test_embeddings_that_are_not_finite(tmp_path):
    model = TinyModel()
    model_changes.no_number(model)
    model.write(tmp_path / "backbone.onnx")
    assert list(failing(tmp_path)) == ["finite", "together"]


def test_integers_for_shapes_are_not_narrow_weights(tmp_path):
    model = TinyModel()
    model.initializers.append(numpy_helper.from_array(np.array([0, -1]), "shape"))  # int64
    model.replace_last(helper.make_node("Reshape", ["double", "shape"], ["embedding"], "fold"))
    model.write(tmp_path / "backbone.onnx")
    assert failing(tmp_path) == {}


def test_weights_in_a_second_file(tmp_path):
    """They would not count toward the size."""
    path = TinyModel().write(tmp_path / "backbone.onnx")
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="weights.bin", size_threshold=1000)
    failed = failing(tmp_path)
    assert list(failed) == ["weights"] and "weight is stored in another file" in failed["weights"]


@pytest.mark.parametrize("size, text", [((96, 112), "3x96x112; expected"), ((112, 64), "3x112x64; expected 3x112x112")])
def test_another_image_size(tmp_path, size, text):
    TinyModel(size).write(tmp_path / "backbone.onnx")
    failed = failing(tmp_path)
    assert list(failed) == ["image"] and text in failed["image"]


def test_a_fixed_batch(tmp_path):
    TinyModel(batch=1).write(tmp_path / "backbone.onnx")
    failed = failing(tmp_path)
    assert list(failed) == ["batch", "together"] and "a batch of 8 faces fails to run" in failed["together"]
    TinyModel(batch=4).write(tmp_path / "backbone.onnx")
    failed = failing(tmp_path)
    assert list(failed) == ["batch", "feature", "finite", "together", "time"] and "fails to run" in failed["feature"]


def test_an_unnamed_batch_is_dynamic(tmp_path):
    model = TinyModel()
    model.inputs[0].type.tensor_type.shape.dim[0].Clear()
    model.write(tmp_path / "backbone.onnx")
    assert failing(tmp_path) == {}


def test_a_dynamic_image_size(tmp_path):
    model = TinyModel()
    for side, name in ((2, "height"), (3, "width")):
        model.inputs[0].type.tensor_type.shape.dim[side].dim_param = name
    model.write(tmp_path / "backbone.onnx")
    failed = failing(tmp_path)
    assert list(failed) == ["image"] and "3xheightxwidth" in failed["image"]


def test_inputs_that_are_not_images(tmp_path):
    """The rules of the runs fail, and the other rules are still checked."""
    model = TinyModel()
    model.inputs.append(helper.make_tensor_value_info("more", TensorProto.FLOAT, ["batch", 16]))
    model.replace_last(helper.make_node("Add", ["double", "more"], ["embedding"], "more"))
    model.write(tmp_path / "backbone.onnx")
    failed = failing(tmp_path)
    assert list(failed) == ["input", "feature", "finite", "together", "time"]
    assert "more tensor(float) ['batch', 16]" in failed["input"] and "not checked" in failed["time"]

    model = TinyModel()
    model.inputs = [helper.make_tensor_value_info("data", TensorProto.FLOAT, ["batch", 3, 12544])]
    model.nodes[2:3] = [helper.make_node("Identity", ["pixels"], ["blocks"], "no pool")]
    model.initializers[2] = numpy_helper.from_array(np.ones((3 * 12544, 16), np.float32), "weight")
    model.write(tmp_path / "backbone.onnx")
    assert list(failing(tmp_path)) == ["input", "batch", "image", "feature", "finite", "together", "time"]


def test_float16_pixels(tmp_path):
    model = TinyModel()
    model.inputs[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    model.nodes[0].input[0] = "wide"
    model.nodes.insert(0, helper.make_node("Cast", ["data"], ["wide"], "cast", to=TensorProto.FLOAT))
    model.write(tmp_path / "backbone.onnx")
    assert "tensor(float16)" in failing(tmp_path)["input"]


def test_the_limits_of_size_dimension_and_time(tmp_path):
    megabytes = os.path.getsize(TinyModel(features=513).write(tmp_path / "backbone.onnx")) / 2**20
    assert list(failing(tmp_path)) == ["feature"]
    wide = TRACKS["glint"]._replace(milliseconds=10_000, megabytes=megabytes)  # exactly the limit
    assert failing(tmp_path, wide) == {}
    assert list(failing(tmp_path, wide._replace(megabytes=megabytes * 0.999))) == ["size"]
    assert list(failing(tmp_path, wide._replace(milliseconds=1e-6))) == ["time"]
    TinyModel(features=1025).write(tmp_path / "backbone.onnx")
    assert list(failing(tmp_path, wide._replace(megabytes=1024))) == ["feature"]


def test_the_last_file_by_name_is_used(tmp_path):
    TinyModel(features=600).write(tmp_path / "a.onnx")
    TinyModel().write(tmp_path / "b.onnx")
    rules = check_submission(str(tmp_path), EASY)
    assert all(rule.passed for rule in rules) and rules[1].figure == "b.onnx, the last of 2 by name"


def test_no_model(tmp_path):
    failed = failing(tmp_path)
    assert list(failed)[:3] == ["file", "size", "loads"] and len(failed) == 14
    assert "holds no .onnx file" in failed["file"] and "not checked" in failed["size"]
    (tmp_path / "backbone.onnx").write_bytes(b"no model")
    failed = failing(tmp_path)
    assert "onnxruntime" in failed["loads"] and list(failed)[0] == "loads" and len(failed) == 12
    failed = failing(tmp_path / "backbone.onnx")
    assert "is a file" in failed["folder"] and len(failed) == 15


def test_pixel_files_of_the_cfat_track(tmp_path):
    TinyModel((96, 80), normalizes=False).write(tmp_path / "backbone.onnx")
    (tmp_path / "crop.txt").write_text("8\n16\n88\n112\n80\n96\n")  # width before height
    (tmp_path / "pixel_norm.txt").write_text("127.5\n128\n")
    assert failing(tmp_path, CFAT) == {}
    figures = {rule.name: rule.figure for rule in check_submission(str(tmp_path), CFAT)}
    assert figures["crop.txt"] == "8, 16, 88, 112, 80, 96" and "pixel_norm.txt" in figures["normalization"]
    assert list(failing(tmp_path)) == ["image"]  # the other tracks ignore the files


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("crop.txt", "0\n0\n112\n112\n", "['0', '0', '112', '112'] are not valid; expected lines: left, top"),
        ("crop.txt", "0\n0\n112\n112\n112\n1.5\n", "expected lines: left, top"),
        ("crop.txt", "9\n0\n8\n112\n112\n112\n", "expected lines: left, top"),
        ("pixel_norm.txt", "mean\n127.5\n", "['mean', '127.5'] are not valid; expected lines: mean, deviation"),
        ("pixel_norm.txt", "127.5\n0\n", "expected lines: mean"),
        ("pixel_norm.txt", "nan\n1\n", "expected lines: mean"),
    ],
)
def test_invalid_pixel_files_of_the_cfat_track(tmp_path, name, text, message):
    TinyModel().write(tmp_path / "backbone.onnx")
    (tmp_path / name).write_text(text)
    failed = failing(tmp_path, CFAT)
    assert list(failed) == [name] and message in failed[name]


def test_the_command(tmp_path):
    TinyModel().write(tmp_path / "backbone.onnx")
    command = [sys.executable, os.path.join(ROOT, "onnx_helper_sample.py"), "--model_root", str(tmp_path)]
    done = subprocess.run([*command, "--time-limit", "10000"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr == ""
    lines = done.stdout.splitlines()
    assert [line[:4] for line in lines[:-1]] == ["pass"] * 15 and lines[-1] == "track ms1m: all rules passed"


def test_the_time_limit_of_the_track_is_explained(tmp_path, capsys, monkeypatch):
    TinyModel().write(tmp_path / "backbone.onnx")
    monkeypatch.setitem(TRACKS, "glint", TRACKS["glint"]._replace(milliseconds=1e-6))  # too short for any machine
    assert exit_code("submission", "--model_root", str(tmp_path), "--track", "glint") == 1
    assert (
        "the time limit is for a Tesla V100 with onnxruntime-gpu 1.6: --time-limit MS sets another"
        in capsys.readouterr().out
    )


def test_exit_codes(tmp_path, capsys):
    TinyModel(features=600).write(tmp_path / "backbone.onnx")
    arguments = ["--model_root", str(tmp_path), "--time-limit"]
    assert exit_code("submission", *arguments, "1e-6") == 1
    text = capsys.readouterr().out
    assert "--time-limit MS sets another" not in text
    assert "FAIL  time" in text and "FAIL  feature" in text and "track ms1m: 2 of 15 rules failed" in text
    assert exit_code("submission", *arguments, "10000", "--track", "unconstrained") == 0
    assert exit_code("submission", "--model_root", str(tmp_path / "absent")) == 2
    assert "absent does not exist" in capsys.readouterr().err
    for wrong in ([], ["--track", "ms2m"], [*arguments, "0"], [*arguments, "soon"], [*arguments, "nan"]):
        assert exit_code("submission", *wrong) == 2
