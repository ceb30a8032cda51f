"""partial-fc export --half and --int8: smaller files that verify nearly as well.

In this folder because onnxruntime's quantization imports torch.
"""

import numpy as np
import onnx
import pytest
import torch

from command_line import exit_code
from partial_fc.data.pairs_bin import read_pairs, write_pairs
from partial_fc.data.synthetic.draw import encode_face
from partial_fc.evaluation.validation_set import decode_faces
from partial_fc.export.model import FaceModel
from partial_fc.export.model_file import find_model, model_content
from partial_fc.export.parity import check_form, random_faces
from partial_fc.utils.distances import squared_distances
from partial_fc_tools.export import measured
from partial_fc_tools.export.smaller import to_half, to_int8
from partial_fc_tools.verify.command import embed_pairs, verify_model
from partial_fc_torch.backbones import get_model
from partial_fc_torch.onnx_export import OnnxExport
from tiny_onnx import TinyModel

PAIRS = 100
FACES = random_faces((112, 112), 3)
NO_FACES = np.empty((0, 3, 112, 112), np.uint8)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Pairs of 8 identities, half of them of one person."""
    path = tmp_path_factory.mktemp("pairs") / "faces.bin"
    people = [(pair % 8, (pair + pair % 2) % 8) for pair in range(PAIRS)]
    images = [
        encode_face(1, person, 2 * pair + side) for pair, both in enumerate(people) for side, person in enumerate(both)
    ]
    write_pairs(path, images, [a == b for a, b in people])
    return path


def large(normalizes=True, features=64):
    model = TinyModel(features=features, normalizes=normalizes)
    model.metadata = {"network": "tiny", "rand_mirror": "False", "verification_threshold": "9.0"}
    return model


@pytest.mark.parametrize("files", [1, 2])
@pytest.mark.parametrize("normalizes", [True, False])
@pytest.mark.parametrize("kind, size, error", [("half", 0.6, 2e-3), ("int8", 0.4, 3e-2)])
def test_a_smaller_file_has_the_inputs_and_nearly_the_embeddings_of_the_original(
    kind, size, error, normalizes, files, pairs, tmp_path, capsys
):
    model = large(normalizes)
    full = FaceModel((model.write if files == 1 else model.write_in_two)(tmp_path / "backbone.onnx"), "full")
    assert exit_code("export", tmp_path, f"--{kind}", "--pairs", pairs, "--limit", 0.1) == 0
    path = tmp_path / f"backbone_{kind}.onnx"
    small = FaceModel(str(path), "small")
    assert path.stat().st_size < size * len(model_content(str(tmp_path / "backbone.onnx")))
    assert small.input == full.input and not small.mirrored
    metadata = small.session.get_modelmeta().custom_metadata_map
    assert metadata["network"] == "tiny" and metadata["verification_set"] == "faces"
    # Int8 has another one than the original.
    assert float(metadata["verification_threshold"]) == verify_model(small, *read_pairs(pairs), "faces")[0].threshold
    expected, found = full.embed(FACES), small.embed(FACES)
    cosine = (expected * found).sum(1) / np.linalg.norm(expected, axis=1) / np.linalg.norm(found, axis=1)
    assert 1 - cosine.min() < error and not np.array_equal(expected, found)
    onnx.checker.check_model(str(path), full_check=True)
    assert "instead of" in capsys.readouterr().out
    assert find_model(tmp_path) == str(tmp_path / "backbone.onnx")


@pytest.mark.parametrize("source, kind", [("half", "int8"), ("int8", "half"), ("int8", "int8")])
def test_a_smaller_file_is_made_only_from_the_original(source, kind, pairs, tmp_path, capsys):
    large().write(tmp_path / "backbone.onnx")
    assert exit_code("export", tmp_path, f"--{source}", "--pairs", pairs, "--limit", 0.1) == 0
    arguments = ["--pairs", pairs, "--limit", 0.1, "--out", tmp_path / "again.onnx"]
    assert exit_code("export", tmp_path / f"backbone_{source}.onnx", f"--{kind}", *arguments) == 2
    assert "give the original" in capsys.readouterr().err


def test_int8_refuses_a_model_with_the_names_of_a_quantized_one():
    model = large()
    for node in model.nodes:
        for names in (node.input, node.output):
            names[:] = ["product_DequantizeLinear_Output" if name == "flat" else name for name in names]
    graph = onnx.helper.make_graph(model.nodes, "tiny", model.inputs, model.outputs, model.initializers)
    content = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 11)], ir_version=6)
    full = FaceModel(content.SerializeToString(), "full")
    with pytest.raises(ValueError, match="names"):
        to_int8(content.SerializeToString(), [full.pixels(FACES)])


@pytest.mark.parametrize("network", ["small", "mbf"])
def test_networks_with_convolutions(network):
    torch.manual_seed(0)
    content = OnnxExport(get_model(network, num_features=16), NO_FACES)(0)
    full, faces = FaceModel(content, network), random_faces((112, 112), 8)
    expected = full.embed(faces)
    for small, error in ((to_half(content), 1e-3), (to_int8(content, [full.pixels(faces)]), 5e-2)):
        found = check_form(small, raw_pixels=False).embed(faces)
        assert 0 < squared_distances(found, expected).max() / 2 < error


def test_int8_is_calibrated_with_all_batches(pairs, tmp_path):
    """The last batch has the largest values."""
    full = FaceModel(large().write(tmp_path / "model.onnx"), "full")
    content, pixels = (tmp_path / "model.onnx").read_bytes(), full.pixels(random_faces((112, 112), 5))
    pixels[4:] *= 9
    whole = to_int8(content, [pixels])
    assert to_int8(content, [pixels[:2], pixels[2:4], pixels[4:]]) == whole != to_int8(content, [pixels[:4]])


def test_int8_is_calibrated_with_images_from_the_whole_set(pairs, tmp_path, monkeypatch):
    taken = []

    def recorded(content, batches):
        taken.extend(batches := list(batches))
        return to_int8(content, batches)

    monkeypatch.setattr(measured, "to_int8", recorded)
    monkeypatch.setattr(measured, "CALIBRATED", 5)
    monkeypatch.setattr(measured, "BATCH", 2)
    model = FaceModel(large().write(tmp_path / "backbone.onnx"), "full")
    assert exit_code("export", tmp_path, "--int8", "--pairs", pairs, "--limit", 0.9) == 0
    images = read_pairs(pairs)[0]
    chosen = decode_faces([images[number] for number in (0, 49, 99, 149, 199)], 112, "faces")
    assert [len(batch) for batch in taken] == [2, 2, 1]
    np.testing.assert_array_equal(np.concatenate(taken), model.pixels(chosen))


def test_sums_of_products_stay_in_16_bits():
    """255 * 64 + 255 * 64 does; CPUs without VNNI saturate larger sums."""
    content = OnnxExport(get_model("small", num_features=16), NO_FACES)(0)
    pixels = FaceModel(content, "small").pixels(random_faces((112, 112), 8))
    graph = onnx.load_model_from_string(to_int8(content, [pixels])).graph
    weights = [each for each in map(onnx.numpy_helper.to_array, graph.initializer) if each.dtype == np.int8]
    largest = [np.abs(each.astype(int)).max() for each in weights if each.size > 100]
    assert len(largest) > 2 and max(largest) == 64


@pytest.mark.parametrize("kind", ["half", "int8"])
def test_a_file_that_verifies_worse_is_refused_with_the_figures(kind, pairs, tmp_path, capsys):
    model = large()
    model.weight[:] *= 1e-9 if kind == "half" else 1  # below the smallest number of float16
    model.weight[0] *= 1 if kind == "half" else 1e6  # of an input that is 0; leaves one step of int8 to all others
    mask = np.arange(len(model.weight)) > 0
    model.initializers.append(onnx.numpy_helper.from_array(mask.astype(np.float32), "mask"))
    (matrix,) = (node for node in model.nodes if node.name == "matrix")
    matrix.input[0] = "masked"
    model.nodes.insert(model.nodes.index(matrix), onnx.helper.make_node("Mul", ["flat", "mask"], ["masked"], "mask"))
    model.bias[:] = 0
    arrays = {"weight": model.weight, "bias": model.bias}
    for number, each in enumerate(model.initializers):
        if each.name in arrays:
            model.initializers[number] = onnx.numpy_helper.from_array(arrays[each.name], each.name)
    original = FaceModel(model.write(tmp_path / "model.onnx"), "original")
    images = read_pairs(pairs)[0]
    embeddings = embed_pairs(original, images, "faces", 32, mirrored=False)
    distance = squared_distances(embeddings[0::2], embeddings[1::2])
    write_pairs(tmp_path / "faces.bin", images, distance < np.median(distance))  # which the original tells apart
    small = tmp_path / "small.onnx"
    arguments = ["export", tmp_path / "model.onnx", f"--{kind}", "--pairs", tmp_path / "faces.bin", "--out", small]
    assert exit_code(*arguments) == 2
    message = capsys.readouterr().err
    assert "accuracy" in message and "TAR@FAR" in message and "--limit is 0.005" in message or "not finite" in message
    assert not small.exists()


@pytest.mark.parametrize("scale", [1e6, 1e-9])
def test_weights_outside_of_the_range_of_float16_are_named(scale, tmp_path, capsys):
    """A pair has the same image twice or two different ones, so accuracy and TAR stay 1."""
    faces = [encode_face(1, person, 0) for person in range(PAIRS + 1)]
    images = [faces[pair + (pair % 2) * side] for pair in range(PAIRS) for side in (0, 1)]
    write_pairs(tmp_path / "faces.bin", images, [pair % 2 == 0 for pair in range(PAIRS)])
    model = large()
    for number, name in ((2, "weight"), (3, "bias")):
        array = onnx.numpy_helper.to_array(model.initializers[number])
        model.initializers[number] = onnx.numpy_helper.from_array(array * np.float32(scale), name)
    model.write(tmp_path / "backbone.onnx")
    assert exit_code("export", tmp_path, "--half", "--pairs", tmp_path / "faces.bin") == 2
    assert "cosine" in (message := capsys.readouterr().err) and "weight" in message
    assert not (tmp_path / "backbone_half.onnx").exists()
    assert exit_code("export", tmp_path, "--int8", "--pairs", tmp_path / "faces.bin", "--limit", 0.1) == 0
    printed = float(capsys.readouterr().out.partition("lowest cosine to the original ")[2].split(",")[0].split()[0])
    rows = [
        embed_pairs(FaceModel.open(tmp_path / name), images, "faces", 32, mirrored=False)
        for name in ("backbone.onnx", "backbone_int8.onnx")
    ]
    lengths = np.linalg.norm(rows, axis=2)
    assert printed == pytest.approx((np.einsum("ne,ne->n", *rows) / lengths.prod(axis=0)).min(), abs=2e-5)


@pytest.mark.parametrize(
    "count, one, message",
    [(9, False, "9 pairs"), (99, False, "100 or more"), (100, True, "chance is 0.50000")],
)
def test_too_few_pairs_or_pairs_of_one_image_are_refused(count, one, message, pairs, tmp_path, capsys):
    images, issame = read_pairs(pairs)
    write_pairs(tmp_path / "faces.bin", images[:1] * 200 if one else images[: 2 * count], issame[:count])
    large().write(tmp_path / "backbone.onnx")
    assert exit_code("export", tmp_path, "--int8", "--pairs", tmp_path / "faces.bin", "--limit", 1) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "backbone_int8.onnx").exists()


def test_pairs_are_needed(tmp_path, capsys):
    TinyModel().write(tmp_path / "model.onnx")
    assert exit_code("export", tmp_path / "model.onnx", "--half") == 2
    assert "give --pairs" in capsys.readouterr().err
