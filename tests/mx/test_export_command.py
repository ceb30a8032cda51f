"""python -m partial_fc_mxnet.export, on what MXNet and the original trainer leave."""

import mxnet as mx
import numpy as np
import pytest
from test_onnx_parity import random_parameters

from partial_fc.data.pairs_bin import write_pairs
from partial_fc.data.synthetic import encode_face
from partial_fc.inference.model import FaceModel
from partial_fc.inference.parity import random_faces
from partial_fc_mxnet import export
from partial_fc_mxnet.symbol import get_symbol


@pytest.fixture
def saved(tmp_path):
    """As the original leaves it where the whole training network is saved, softmax and all."""
    embedding = get_symbol("small", 16)
    params = random_parameters(embedding, 112)
    whole = mx.sym.Group([embedding, mx.sym.BlockGrad(mx.sym.Variable("softmax_label"))])
    mx.model.save_checkpoint(str(tmp_path / "model"), 0, whole, *params)
    return tmp_path


def run(monkeypatch, capsys, *words):
    """(exit code, output, errors)."""
    monkeypatch.setattr("sys.argv", ["export", *map(str, words)])
    code = export.main()
    told = capsys.readouterr()
    return code, told.out, told.err


def test_it_writes_what_mxnet_computes(saved, monkeypatch, capsys):
    write_pairs(saved / "few.bin", [encode_face(0, person, 0) for person in range(4)], [False, False])
    code, told, _ = run(monkeypatch, capsys, saved, "--pairs", saved / "few.bin")
    assert code == 0 and told.startswith(f"{saved}/backbone.onnx: ")
    symbol, arg_params, aux_params = export.load_backbone(f"{saved}/model-symbol.json", f"{saved}/model-0000.params")
    faces = random_faces((112, 112), 2)
    data = mx.nd.array(faces.transpose(0, 3, 1, 2))
    expected = symbol.bind(mx.cpu(), {**arg_params, "data": data}, aux_states=aux_params).forward()[0].asnumpy()
    np.testing.assert_allclose(FaceModel.open(saved).embed(faces), expected, rtol=1e-3, atol=1e-4)


def test_a_file_that_is_there_stays_unless_forced(saved, monkeypatch, capsys):
    (saved / "backbone.onnx").write_bytes(b"with a threshold")
    code, _, told = run(monkeypatch, capsys, saved)
    assert code == 2 and "already exists" in told
    assert (saved / "backbone.onnx").read_bytes() == b"with a threshold"
    assert run(monkeypatch, capsys, saved, "--force")[0] == 0


def test_images_of_a_size_that_the_network_cannot_take(saved, monkeypatch, capsys):
    code, _, told = run(monkeypatch, capsys, saved, "--image-size", "96")
    assert code == 2 and "the backbone does not run on images of 96x96" in told and "Traceback" not in told


def test_what_cannot_be_read_is_named(saved, monkeypatch, capsys):
    (saved / "model-0001.params").write_bytes((saved / "model-0000.params").read_bytes()[:3000])
    code, _, told = run(monkeypatch, capsys, saved)
    assert code == 2 and f"MXNet cannot read {saved}/model-0001.params" in told and "Traceback" not in told
    assert run(monkeypatch, capsys, saved / "nothing")[0] == 2


def test_parameters_of_another_network_are_refused(saved, monkeypatch, capsys):
    other = get_symbol("r18", 16)
    (saved / "model-symbol.json").write_text(other.tojson())
    code, _, told = run(monkeypatch, capsys, saved / "model-0000.params")
    assert code == 2 and "which" in told and "needs: give files of the same training" in told
    assert not (saved / "backbone.onnx").exists()
