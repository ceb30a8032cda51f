"""FaceModel: weights in separate files, the range of the pixels, and refused models."""

import os

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import set_external_data

from partial_fc.export.item_model import ItemModel
from partial_fc.export.model import FaceModel, open_session
from partial_fc.export.model_file import model_content, model_files, parse_model
from partial_fc.export.parity import random_faces
from partial_fc.utils.distances import squared_distances
from partial_fc_tools.sets.detection import open_detector
from tiny_onnx import TinyModel

FACES = random_faces((112, 112), 5)


def point_to(path, location):
    """Changes the name of the weights file in a model, also in branches and functions."""
    model = onnx.load(path, load_external_data=False)

    def change(message):
        if isinstance(message, TensorProto):
            for entry in message.external_data:
                if entry.key == "location":
                    entry.value = location
        for field, value in message.ListFields():
            for each in [value] if hasattr(value, "ListFields") else value if field.message_type else ():
                change(each)

    change(model)
    path.write_bytes(model.SerializeToString())


OUTSIDE = ["../weights.bin", "{}/weights.bin", "link", "fifo", "part", "", "gone", "*/_ORT_MEM_ADDR_/*"]
DOORS = [FaceModel.open, model_files, model_content, open_detector, lambda path: ItemModel(path, path)]


@pytest.mark.parametrize(
    "door, location", [*((DOORS[0], location) for location in OUTSIDE), *((door, "../weights.bin") for door in DOORS)]
)
@pytest.mark.parametrize("in_branch", [False, True])
def test_weights_elsewhere_are_not_read(tmp_path, in_branch, door, location):
    folder = tmp_path / "model"
    (folder / "part").mkdir(parents=True)
    (folder / "*/_ORT_MEM_ADDR_").mkdir(parents=True)
    model = TinyModel()
    if in_branch:
        model.weight_in_attribute()
    path = folder / "model.onnx"
    model.write_in_two(path, convert_attributes=in_branch)
    (folder / "*/_ORT_MEM_ADDR_/*").write_bytes((folder / "weights.bin").read_bytes())
    (folder / "weights.bin").rename(tmp_path / "weights.bin")
    (folder / "link").symlink_to("../weights.bin")
    os.mkfifo(folder / "fifo")
    point_to(path, location.format(tmp_path))
    with pytest.raises(ValueError, match="model.onnx.* its weights .* folder of the model") as error:
        door(str(path))
    assert "\n" not in str(error.value)


def test_weights_in_a_subfolder_or_linked_to_where_the_model_is_linked_to(tmp_path):
    """A snapshot in Hugging Face's cache consists of links to files in one folder."""
    (tmp_path / "blobs" / "part").mkdir(parents=True)
    path, snapshot = tmp_path / "blobs" / "1", tmp_path / "model.onnx"
    expected = FaceModel.open(TinyModel().write(path)).embed(FACES)
    TinyModel().write_in_two(path)
    snapshot.symlink_to("blobs/1")
    (tmp_path / "weights.bin").symlink_to("blobs/weights.bin")
    assert model_files(str(path)) == [str(path), str(tmp_path / "blobs/weights.bin")]
    np.testing.assert_allclose(FaceModel.open(path).embed(FACES), expected, rtol=1e-6)
    np.testing.assert_allclose(FaceModel.open(snapshot).embed(FACES), expected, rtol=1e-6)
    (tmp_path / "blobs" / "weights.bin").rename(tmp_path / "blobs" / "part" / "2")
    point_to(path, "part/2")
    np.testing.assert_allclose(FaceModel.open(path).embed(FACES), expected, rtol=1e-6)


def test_the_model_that_is_opened_is_the_one_that_was_checked(tmp_path, monkeypatch):
    """The owner of its folder can replace the file in between."""
    path = TinyModel().write(tmp_path / "model.onnx")

    def parse_and_replace(content, path):
        parsed = parse_model(content, path)
        (tmp_path / "model.onnx").write_bytes(b"another")
        return parsed

    monkeypatch.setattr("partial_fc.export.model.parse_model", parse_and_replace)
    session, _ = open_session(str(path))
    assert session.get_inputs()[0].shape[1:] == [3, 112, 112]


def test_sparse_weights_functions_and_content_alone(tmp_path):
    def outside(name):
        tensor = numpy_helper.from_array(np.ones(3, np.float32), name)
        set_external_data(tensor, "../weights.bin", 0, 12)
        tensor.ClearField("raw_data")
        return tensor

    values = helper.make_sparse_tensor(outside("s"), numpy_helper.from_array(np.arange(3)), [9])
    graph = helper.make_graph([], "g", [], [], sparse_initializer=[values])
    constant = helper.make_node("Constant", [], ["y"], value=outside("c"))
    function = helper.make_function("own", "f", [], ["y"], [constant], [helper.make_opsetid("", 13)])
    models = [helper.make_model(graph), helper.make_model(helper.make_graph([], "g", [], []), functions=[function])]
    for model in models:
        (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
        for source in (str(tmp_path / "model.onnx"), model.SerializeToString()):
            with pytest.raises(ValueError, match="its weights '../weights.bin'"):
                open_session(source)


def test_pipes_are_refused_by_all_readers(tmp_path):
    os.mkfifo(tmp_path / "model.onnx")
    for door in DOORS:
        with pytest.raises(OSError, match="model.onnx"):
            door(str(tmp_path / "model.onnx"))


def test_a_folder_is_opened_as_its_backbone_or_its_last_model(tmp_path):
    for name in ("backbone_ema", "backbone"):
        TinyModel().write(tmp_path / f"{name}.onnx")
    assert FaceModel.open(tmp_path).name == str(tmp_path / "backbone.onnx")
    TinyModel().write(tmp_path / "c.onnx")
    (tmp_path / "backbone.onnx").unlink()
    assert FaceModel.open(tmp_path).name == str(tmp_path / "c.onnx")


def channels(*values):
    return np.reshape(values, (1, -1, 1, 1))


@pytest.mark.parametrize(
    "steps",
    [
        [("Sub", channels(127.5, 127.5, 127.5)), ("Div", 127.5)],
        [("Identity",), ("Sub", 127.5), ("Mul", 1 / 127.5)],
        [("Div", 255), ("Sub", 0.5), ("Div", 0.5)],
        [("Mul", 2 / 255), ("Add", -1)],
        [("Mul", 2 / 255), ("Sub", 1)],
        [("BatchNormalization", [1 / 127.5] * 3, [0] * 3, [127.5] * 3, [1 - 1e-5] * 3)],
    ],
)
def test_a_model_that_normalizes_takes_pixels_0_to_255(steps, tmp_path):
    model = TinyModel()
    model.replace_first(*steps)
    found = FaceModel.open(model.write(tmp_path / "model.onnx")).embed(FACES)
    np.testing.assert_allclose(found, [TinyModel().slow(face) for face in FACES], rtol=1e-3, atol=1e-4)


IMAGENET = [("Sub", channels(0.485, 0.456, 0.406)), ("Div", channels(0.229, 0.224, 0.225))]
UNCLEAR = [("Mul", 255)]


@pytest.mark.parametrize(
    "steps, stated, pixels",
    [
        ([("Sub", channels(131.1, 103.9, 91.5))], "", "0..255"),
        ([("Div", 255)], "", "0..255"),
        ([("Div", 255), *IMAGENET], "", "0..255"),
        (IMAGENET, "", "0..1"),
        ([("Mul", 2), ("Sub", 1)], "", "0..1"),
        ([("Identity",)], "", "-1..1"),
        ([("Div", 2)], "", "-1..1"),
        ([("Identity",)], "0..255", "0..255"),
        (IMAGENET, "-1..1", "-1..1"),
        (UNCLEAR, "", "-1..1"),
        (UNCLEAR, "0..1", "0..1"),
    ],
)
def test_the_metadata_or_the_first_operators_decide_the_range_of_the_pixels(steps, stated, pixels, tmp_path, capsys):
    model = TinyModel()
    model.replace_first(*steps)
    model.metadata = {"pixel_range": stated} if stated else {}
    file = FaceModel.open(model.write(tmp_path / "model.onnx"))
    assert file.pixel_range == pixels and file.input.normalizes == (pixels == "0..255")
    ends = file.pixels(np.array([0, 255], np.uint8).reshape(1, 1, 2, 1).repeat(3, axis=3))[0, 0, 0]
    np.testing.assert_allclose(ends, [float(end) for end in pixels.split("..")], atol=1e-6)
    assert ("'pixel_range'" in capsys.readouterr().err) == (steps is UNCLEAR and not stated)
    model.metadata = {"pixel_range": "0-255"}
    with pytest.raises(ValueError, match="expected 0..255 or 0..1 or -1..1"):
        FaceModel.open(model.write(tmp_path / "model.onnx"))


def test_own_files_without_metadata_are_recognized_by_their_first_nodes(tmp_path):
    model = TinyModel()
    model.replace_first(("Sub", 0), ("Mul", 1))
    for node in model.nodes[:2]:
        node.name = f"{node.op_type}_raw"
    assert FaceModel.open(model.write(tmp_path / "model.onnx")).pixel_range == "0..255"


def center(model):
    """Subtracts the mean of the batch, like BatchNorm in training mode."""
    mean = helper.make_node("ReduceMean", ["double"], ["batch_mean"], axes=[0])
    model.replace_last(mean, helper.make_node("Sub", ["double", "batch_mean"], ["embedding"]))


def tile(model):
    """Returns the first embedding for all faces."""
    model.initializers += [numpy_helper.from_array(np.array([end]), f"at{end}") for end in (0, 1)]
    first = helper.make_node("Slice", ["double", "at0", "at1"], ["first"])
    zeros = helper.make_node("Sub", ["double", "double"], ["zeros"])
    model.replace_last(first, zeros, helper.make_node("Add", ["zeros", "first"], ["embedding"]))


def take_one(model):
    """Fails on more than one face."""
    model.initializers.append(numpy_helper.from_array(np.array([1, len(model.weight)]), "shape"))
    (flat,) = (node for node in model.nodes if node.name == "flat")
    flat.CopyFrom(helper.make_node("Reshape", ["blocks", "shape"], ["flat"]))


@pytest.mark.parametrize(
    "change, batch, message",
    [
        (center, "batch", "eval mode"),
        (center, 4, "eval mode"),
        (tile, 2, "depend"),
        (take_one, "n", "dynamic batch size"),
    ],
)
def test_the_embedding_of_a_face_must_not_depend_on_the_batch(change, batch, message, tmp_path):
    model = TinyModel(batch=batch)
    change(model)
    with pytest.raises(ValueError, match=rf"model.onnx.* {message}"):
        FaceModel.open(model.write(tmp_path / "model.onnx"))
    FaceModel.open(TinyModel(batch=1).write(tmp_path / "model.onnx"))


def test_files_that_are_not_face_models_are_refused(tmp_path):
    model = TinyModel()
    model.inputs[0].type.tensor_type.elem_type = TensorProto.DOUBLE
    with pytest.raises(ValueError, match="cannot load this as an ONNX model|maps tensor.double. to"):
        FaceModel.open(model.write(tmp_path / "double.onnx"))
    with pytest.raises(ValueError, match=r"takes faces of \(112, 112\) pixels, not \(96, 96, 3\)"):
        FaceModel.open(TinyModel().write(tmp_path / "model.onnx")).embed(random_faces((96, 96)))


def test_distances():
    rows = np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [0.0, 0.0], [np.inf, 0.0]])
    others = np.array([[2.0, 0.0], [-1.0, -1.0], [0.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    np.testing.assert_allclose(squared_distances(rows, others), [0, 4, 0, 1, np.nan], atol=1e-12)
