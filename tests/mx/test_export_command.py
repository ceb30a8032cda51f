"""partial-fc export with files of MXNet and the original trainer."""

import json

import mxnet as mx
import numpy as np
import pytest
from symbol_arrays import embed, random_parameters

from command_line import exit_code
from partial_fc.data.pairs_bin import write_pairs
from partial_fc.data.synthetic import encode_face
from partial_fc.export.model import FaceModel
from partial_fc.export.parity import random_faces
from partial_fc_mxnet import export
from partial_fc_mxnet.symbol import get_symbol


@pytest.fixture
def saved(tmp_path):
    """Files of the original trainer, which saves the whole training network."""
    embedding = get_symbol("small", 16)
    params = random_parameters(embedding)
    whole = mx.sym.Group([embedding, mx.sym.BlockGrad(mx.sym.Variable("softmax_label"))])
    mx.model.save_checkpoint(str(tmp_path / "model"), 0, whole, *params)
    return tmp_path


def run(capsys, *arguments):
    """Returns (exit code, standard output, standard error)."""
    code = exit_code("export", *arguments)
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_the_file_gives_mxnets_embeddings(saved, capsys):
    write_pairs(saved / "few.bin", [encode_face(0, person, 0) for person in range(4)], [False, False])
    (saved / "backbone.onnx").write_bytes(b"an earlier one")
    code, output, _ = run(capsys, saved, "--pairs", saved / "few.bin", "--force")
    assert code == 0 and output.startswith(f"{saved}/backbone.onnx: ")
    faces = random_faces((112, 112), 2)
    backbone = export.load_backbone(str(saved))
    expected = embed(*backbone, faces)
    np.testing.assert_allclose(FaceModel.open(saved).embed(faces), expected, rtol=1e-3, atol=1e-4)


def test_bad_files_and_sizes_are_named_in_one_line(saved, capsys):
    (saved / "cut").mkdir()
    (saved / "cut" / "model-symbol.json").write_bytes((saved / "model-symbol.json").read_bytes())
    (saved / "cut" / "model-0001.params").write_bytes((saved / "model-0000.params").read_bytes()[:3000])
    cases = [
        ([saved, "--image-size", "96"], "images of 96x96"),
        ([saved / "cut"], f"{saved}/cut/model-0001.params"),
        ([saved / "nothing"], "nothing does not exist"),
    ]
    for arguments, message in cases:
        code, _, error = run(capsys, *arguments)
        assert code == 2 and message in error and error.count("\n") == 1, error


@pytest.mark.parametrize("change", ["arrays", "output"])
def test_mxnet_itself_reads_no_file(saved, capsys, change):
    """MXNet would allocate the 2^26 arrays that a small file claims to have, and read an output that does not exist."""
    if change == "arrays":
        content = bytearray((saved / "model-0000.params").read_bytes())
        content[16:24] = (2**26).to_bytes(8, "little")
        (saved / "model-0000.params").write_bytes(content)
        code, _, error = run(capsys, saved)
        assert code == 2 and "cannot read the parameters in" in error
    else:
        symbol = json.loads((saved / "model-symbol.json").read_text())
        symbol["nodes"][-1]["inputs"] = [[each[0], 10**6, 0] for each in symbol["nodes"][-1]["inputs"]]
        symbol["heads"] = [[head[0], 10**6, 0] for head in symbol["heads"]]
        (saved / "model-symbol.json").write_text(json.dumps(symbol))
        assert run(capsys, saved)[0] == 0


def test_parameters_of_another_network_are_refused(saved, capsys):
    other = get_symbol("r18", 16)
    (saved / "model-symbol.json").write_text(other.tojson())
    code, _, error = run(capsys, saved / "model-0000.params")
    assert code == 2 and "which its network needs: give files of one training" in error
    assert not (saved / "backbone.onnx").exists()
