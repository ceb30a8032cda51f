"""The ONNX file of a backbone computes PyTorch's embeddings, and the project's other programs read it."""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from test_mxnet_weights import build
from torch import nn

from command_line import exit_code
from partial_fc.export.model import FaceModel
from partial_fc.export.parity import check_named, open_named, random_faces
from partial_fc.utils.distances import squared_distances
from partial_fc_tools.ijb.synthetic import write_protocol
from partial_fc_torch.backbones import get_model
from partial_fc_torch.onnx_export import OnnxExport
from partial_fc_torch.pixels import normalized

FACES = random_faces((112, 112), 6)[4:]  # the export checks the first four
IMAGES, SMALL = FACES.transpose(0, 3, 1, 2), np.empty((0, 3, 16, 16), np.uint8)


def assert_same_embeddings(file, model, faces):
    """Compares a file with the module, in evaluation mode."""
    with torch.no_grad():
        expected = model.eval()(normalized(torch.from_numpy(faces).permute(0, 3, 1, 2))).numpy()
    assert squared_distances(file.embed(faces), expected).max() / 2 < 1e-6


@pytest.mark.parametrize("name", ["r18", "mobilefacenet", "small"])
def test_every_kind_of_backbone(name):
    """With weights that reveal mistakes; the module stays in training mode, with its weights."""
    model = build(name, eps=2e-5).train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    content = OnnxExport(model, IMAGES, lambda num_update: {"num_update": str(num_update)})(7)
    file = FaceModel(content, name)
    assert file.input == ("data", None, (112, 112), False)
    assert file.session.get_modelmeta().custom_metadata_map == {
        "num_update": "7",
        "bn_eps": "2e-05",
        "pixel_range": "-1..1",
    }
    assert model.training and all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert_same_embeddings(file, model, FACES)


@pytest.mark.parametrize("name", ["mbf", "vit_t"])
def test_networks_that_mxnet_does_not_have(name):
    """Three images through a file that was traced with one."""
    torch.manual_seed(0)
    model = get_model(name, num_features=16)
    file = FaceModel(OnnxExport(model, IMAGES)(0), name)
    assert file.input == ("data", None, (112, 112), False)
    assert_same_embeddings(file, model, random_faces((112, 112), 3))


def test_pixels_are_normalized_as_published():
    expected = (FACES.transpose(0, 3, 1, 2) / 255 - 0.5) / 0.5
    for faces in (FACES, FACES.astype(np.float32)):
        got = normalized(torch.from_numpy(faces).permute(0, 3, 1, 2))
        assert got.dtype == torch.float32
        np.testing.assert_allclose(got.numpy(), expected, rtol=0, atol=1e-6)


def test_onnxruntime_1_6_can_read_it():
    """Opset 11 and IR 6 of 2019, float32 weights in one file, also of a backbone that computes in float16."""
    model = onnx.load_model_from_string(OnnxExport(get_model("mbf", num_features=16, fp16=True), IMAGES)(0))
    assert ([(each.domain, each.version) for each in model.opset_import], model.ir_version) == ([("", 11)], 6)
    assert all(onnx.defs.has(node.op_type, max_inclusive_version=11) for node in model.graph.node)
    assert {tensor.data_type for tensor in model.graph.initializer} == {onnx.TensorProto.FLOAT}
    assert "Cast" not in {node.op_type for node in model.graph.node}


def test_the_other_commands_read_it(tmp_path, capsys):
    """The file passes the check of the challenge, and runs in the IJB evaluation."""
    (tmp_path / "backbone.onnx").write_bytes(OnnxExport(get_model("small"), IMAGES)(0))
    assert exit_code("submission", "--model_root", tmp_path, "--time-limit", "10000") == 0
    text = capsys.readouterr().out
    assert "all rules passed" in text and "(x - 127.5) / 127.5" in text
    write_protocol(str(tmp_path / "IJBC"), 4, 0, "IJBC", "face", 1)
    paths = ["--model-root", tmp_path, "--image-path", tmp_path / "IJBC", "--result-dir", tmp_path / "results"]
    assert exit_code("ijb", *paths, "--workers", "1") == 0
    assert "rank-1" in capsys.readouterr().out


def test_a_module_of_a_user():
    """A module of another package, with a buffer that is not in its state_dict."""

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.dense = nn.Linear(3 * 16 * 16, 8)
            self.register_buffer("offset", torch.arange(8.0), persistent=False)

        def forward(self, images):
            return self.dense(images.flatten(1)) + self.offset

    model = Own()
    assert_same_embeddings(FaceModel(OnnxExport(model, SMALL)(0), "own"), model, random_faces((16, 16), 3))


class Branches(nn.Module):
    """Uses different layers for bright images and for the black one with which the exporter traces it."""

    def __init__(self):
        super().__init__()
        self.dark, self.bright = nn.Linear(3 * 16 * 16, 8), nn.Linear(3 * 16 * 16, 8)

    def forward(self, images):
        return (self.bright if images.abs().sum() > 0 else self.dark)(images.flatten(1))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_a_file_with_other_embeddings_is_refused():
    export = OnnxExport(Branches(), SMALL)
    export.validate_export()  # does not compare
    with pytest.raises(ValueError, match="computes other embeddings"):
        export(0)


def test_an_operator_that_onnx_lacks_is_reported():
    class Odd(nn.Module):
        def forward(self, images):
            return torch.special.i1(images).flatten(1)

    with pytest.raises(ValueError, match="opset 11: .*i1"):
        OnnxExport(Odd(), SMALL).validate_export()


def test_an_operator_of_a_later_opset_raises_the_opset_of_the_file(caplog):
    class Triangular(nn.Sequential):
        def forward(self, images):
            return super().forward(images.tril())

    torch.manual_seed(0)
    export = OnnxExport(Triangular(nn.Flatten(), nn.Linear(3 * 16 * 16, 8)), SMALL)
    export.validate_export()
    assert "tril" in caplog.text and "opset 17" in caplog.text
    assert onnx.load_model_from_string(export(0)).opset_import[0].version == 17


class Weighted(nn.Sequential):
    """A backbone with two named inputs."""

    def forward(self, inputs):
        return super().forward(inputs["values"] * inputs["weights"])


def test_a_backbone_of_named_inputs_is_compared_in_evaluation_mode(caplog):
    torch.manual_seed(0)
    model = Weighted(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 4))
    rng = np.random.default_rng(0)
    examples = {name: rng.standard_normal((5, 6)).astype(np.float32) for name in ("values", "weights")}
    model({name: torch.from_numpy(array) for name, array in examples.items()})
    model[1].running_mean += 1
    export = OnnxExport(model, examples, pixels=False)
    content = export(0)
    assert model.training and not caplog.records
    with torch.no_grad():
        expected = model.eval()({name: torch.from_numpy(array) for name, array in examples.items()}).numpy()
    found = onnxruntime.InferenceSession(content).run(None, examples)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="computes other embeddings"):
        check_named(content, examples, lambda inputs: expected[::-1], "PyTorch")
    with pytest.raises(ValueError, match="expected values, weights, more"):
        open_named(content, {**examples, "more": examples["values"]})
