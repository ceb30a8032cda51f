"""The rules of the masked-face challenge: a model that passes, and for each rule a model that fails only this rule."""

import os
import re
import signal
import time

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from command_line import exit_code
from damage import check_damaged
from partial_fc.export.model import FaceModel
from partial_fc_tools.submission.check import check_submission
from partial_fc_tools.submission.rules import TRACKS, check_pixel_files
from partial_fc_tools.submission.runs import FACES, WARM_UP, check_runs
from tiny_onnx import TinyModel

EASY = TRACKS["ms1m"]._replace(milliseconds=10_000)  # for busy machines
CFAT = TRACKS["cfat"]._replace(milliseconds=10_000)


def narrow_initializer(model):
    model.initializers[-1] = numpy_helper.from_array(np.float16(2), "half")
    model.nodes.insert(0, helper.make_node("Cast", ["half"], ["two"], "cast", to=TensorProto.FLOAT))


def no_number(model):
    model.initializers[3] = numpy_helper.from_array(np.full_like(model.bias, np.nan), "bias")


def leak(model):
    """Adds half of the batch mean to each embedding."""
    model.initializers.append(numpy_helper.from_array(np.float32(0.5), "share"))
    model.replace_last(
        helper.make_node("ReduceMean", ["double"], ["batch_mean"], "mean", axes=[0]),
        helper.make_node("Mul", ["batch_mean", "share"], ["some"], "some"),
        helper.make_node("Add", ["double", "some"], ["embedding"], "leak"),
    )


def three_dimensions(model):
    """Returns a matrix per face."""
    model.initializers.append(numpy_helper.from_array(np.array([-1, 4, 4]), "shape"))
    model.replace_last(helper.make_node("Reshape", ["double", "shape"], ["embedding"], "fold"), shape=["batch", 4, 4])


def always_one(model):
    """Returns the first row only, like a model exported with a fixed batch size of 1."""
    for name, value in (("zero", [0]), ("one", [1])):
        model.initializers.append(numpy_helper.from_array(np.array(value), name))
    model.replace_last(helper.make_node("Slice", ["double", "zero", "one"], ["embedding"], "cut"))


def seven_nodes(model):
    model.replace_last()
    model.nodes[-1].output[0] = "embedding"


def second_output(model):
    model.outputs.append(helper.make_tensor_value_info("flat", TensorProto.FLOAT, ["batch", 588]))


def dynamic_sides(model):
    for side, name in ((2, "height"), (3, "width")):
        model.inputs[0].type.tensor_type.shape.dim[side].dim_param = name


def second_input(model):
    model.inputs.append(helper.make_tensor_value_info("more", TensorProto.FLOAT, ["batch", 16]))
    model.replace_last(helper.make_node("Add", ["double", "more"], ["embedding"], "more"))


def flat_input(model):
    model.inputs = [helper.make_tensor_value_info("data", TensorProto.FLOAT, ["batch", 3, 12544])]
    model.nodes[2:3] = [helper.make_node("Identity", ["pixels"], ["blocks"], "no pool")]
    model.initializers[2] = numpy_helper.from_array(np.ones((3 * 12544, 16), np.float32), "weight")


def float16_pixels(model):
    model.inputs[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    model.nodes[0].input[0] = "wide"
    model.nodes.insert(0, helper.make_node("Cast", ["data"], ["wide"], "cast", to=TensorProto.FLOAT))


def failing(folder, limits=EASY):
    """Returns the failed rules: name -> figure."""
    return {rule.name: rule.result for rule in check_submission(str(folder), limits) if not rule.passed}


@pytest.mark.parametrize("normalizes, text", [(True, "by the model"), (False, "(x - 127.5) / 127.5 before the model")])
def test_a_model_that_passes_all_rules(tmp_path, normalizes, text):
    path = TinyModel(normalizes=normalizes).write(tmp_path / "backbone.onnx")
    rules = check_submission(str(tmp_path), EASY)
    figures = {rule.name: rule.result for rule in rules}
    assert all(rule.passed for rule in rules) and len(figures) == len(rules) == 15
    assert text in figures["normalization"] and "[1, 16] for one face" in figures["feature"]
    assert figures["size"].startswith(f"{os.path.getsize(path) / 2**20:.1f} MB")
    assert float(figures["time"].split()[0]) > 0 and re.search("on (CPU|CUDA)", figures["time"])


RUN_RULES = ["feature", "finite", "together", "time"]


@pytest.mark.parametrize(
    "change, rules, text",
    [
        (narrow_initializer, ["weights"], "such as half of float16"),
        (no_number, ["finite", "together"], "embeddings of 8 faces"),
        (leak, ["together"], "differs from single faces"),
        (always_one, ["together"], "returns shape [1, 16]"),
        (three_dimensions, ["feature"], "[1, 4, 4] for one face"),
        (seven_nodes, ["nodes"], "7, at least 8"),
        (second_output, ["output"], "embedding tensor(float) ['batch', 16], flat tensor(float) "),
        (dynamic_sides, ["image"], "3xheightxwidth"),
        # The rules of the runs fail, and the other rules are still checked.
        (second_input, ["input", *RUN_RULES], "more tensor(float) ['batch', 16]"),
        (flat_input, ["input", "batch", "image", *RUN_RULES], "data tensor(float) ['batch', 3, 12544]"),
        (float16_pixels, ["input", *RUN_RULES], "tensor(float16)"),
    ],
)
def test_a_change_fails_its_rules(tmp_path, change, rules, text):
    model = TinyModel()
    change(model)
    model.write(tmp_path / "backbone.onnx")
    failed = failing(tmp_path)
    assert list(failed) == rules and text in failed[rules[0]]
    assert ("not checked" in failed.get("time", "")) == (rules[0] == "input")


def test_weights_in_a_second_file(tmp_path):
    """The size would not include them."""
    TinyModel().write_in_two(tmp_path / "backbone.onnx")
    failed = failing(tmp_path)
    assert list(failed) == ["weights"] and "another file" in failed["weights"]


def test_a_fixed_batch(tmp_path):
    TinyModel(batch=1).write(tmp_path / "backbone.onnx")
    failed = failing(tmp_path)
    assert list(failed) == ["batch", "together"] and "fails to run" in failed["together"]
    TinyModel(batch=4).write(tmp_path / "backbone.onnx")
    failed = failing(tmp_path)
    assert list(failed) == ["batch", "feature", "finite", "together", "time"] and "fails to run" in failed["feature"]


def test_the_limits_of_size_dimension_and_time(tmp_path):
    TinyModel(features=512).write(tmp_path / "backbone.onnx")
    assert failing(tmp_path) == {}
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
    assert all(rule.passed for rule in rules) and rules[1].result == "b.onnx, the last of 2 by name"


def test_no_model(tmp_path):
    failed = failing(tmp_path)
    assert list(failed)[:3] == ["file", "size", "loads"] and len(failed) == 14
    assert "no .onnx file" in failed["file"] and "not checked" in failed["size"]
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
    figures = {rule.name: rule.result for rule in check_submission(str(tmp_path), CFAT)}
    assert figures["crop.txt"] == "8, 16, 88, 112, 80, 96" and "pixel_norm.txt" in figures["normalization"]
    assert list(failing(tmp_path)) == ["image"]  # the other tracks ignore the files


@pytest.mark.parametrize(
    "name, text",
    [
        ("crop.txt", "0\n0\n112\n112\n"),
        ("crop.txt", "9\n0\n8\n112\n112\n112\n"),
        ("pixel_norm.txt", "127.5\n0\n"),
        ("pixel_norm.txt", "1e300\n1e-300\n"),
    ],
)
def test_invalid_pixel_files_of_the_cfat_track(tmp_path, name, text):
    TinyModel().write(tmp_path / "backbone.onnx")
    (tmp_path / name).write_text(text)
    failed = failing(tmp_path, CFAT)
    assert list(failed) == [name] and "expected lines: " in failed[name]


def test_a_huge_image_size_is_not_tried(tmp_path):
    model = TinyModel()
    dynamic_sides(model)
    model.write(tmp_path / "backbone.onnx")
    (tmp_path / "crop.txt").write_text("0\n0\n1\n1\n99999999\n99999999\n")
    assert "99999999x99999999 is too large" in failing(tmp_path, CFAT)["feature"]


def test_exit_codes(tmp_path, capsys, monkeypatch):
    explained = "the time limit is for a Tesla V100 with onnxruntime-gpu 1.6"
    TinyModel(features=600).write(tmp_path / "backbone.onnx")
    arguments = ["--model_root", str(tmp_path), "--time-limit"]
    assert exit_code("submission", *arguments, "1e-6") == 1
    text = capsys.readouterr().out
    assert explained not in text
    assert "FAIL  time" in text and "FAIL  feature" in text and "track ms1m: 2 of 15 rules failed" in text
    assert exit_code("submission", *arguments, "10000", "--track", "unconstrained") == 0
    monkeypatch.setitem(TRACKS, "glint", TRACKS["glint"]._replace(milliseconds=1e-6))  # too short for any machine
    assert exit_code("submission", "--model_root", str(tmp_path), "--track", "glint") == 1
    assert explained in capsys.readouterr().out
    assert exit_code("submission", "--model_root", str(tmp_path / "absent")) == 2
    assert "absent does not exist" in capsys.readouterr().err
    for wrong in ([], ["--track", "ms2m"], [*arguments, "0"], [*arguments, "soon"], [*arguments, "nan"]):
        assert exit_code("submission", *wrong) == 2


def test_ctrl_c_interrupts_a_model_that_runs_for_long(tmp_path):
    model = TinyModel()
    model.loop(5 * 10**6)
    model.write(tmp_path / "backbone.onnx")
    start = time.monotonic()
    handler = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.alarm(1)
        with pytest.raises(KeyboardInterrupt):
            check_submission(str(tmp_path), EASY)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
    assert time.monotonic() - start < 15


def test_the_first_runs_do_not_count(tmp_path):
    class Warming:
        """A session whose first runs are slow."""

        def __init__(self, session):
            self.session, self.runs = session, 0

        def __getattr__(self, name):
            return getattr(self.session, name)

        def run(self, *arguments):
            self.runs += 1
            time.sleep(0.02 * (FACES + 1 < self.runs <= FACES + 1 + WARM_UP))
            return self.session.run(*arguments)

    session = Warming(FaceModel.open(TinyModel().write(tmp_path / "model.onnx")).session)
    faces = np.zeros((FACES, 3, 112, 112), np.float32)
    *_, speed = check_runs(session, faces, TRACKS["ms1m"]._replace(milliseconds=15), None)
    assert speed.name == "time" and speed.passed, speed


@pytest.mark.parametrize(
    "name, content", [("crop.txt", b"10\n20\n122\n132\n112\n112\n"), ("pixel_norm.txt", b"127.5\n128\n")]
)
def test_damaged_files_of_pixels(tmp_path, name, content):
    def read(path):
        rules, pixels = check_pixel_files(os.path.dirname(path))
        assert 0 < min(pixels.image_size) and (pixels.norm is None or np.isfinite(pixels.norm).all())
        if not all(rule.passed for rule in rules):
            raise ValueError(path)

    check_damaged(tmp_path / name, content, read)
