"""partial-fc search: the ranking in a folder and in an index against a slow reference."""

import json
import os

import cv2
import numpy as np
import pytest

from command_line import exit_code
from partial_fc.data.synthetic.draw import draw_face
from partial_fc_tools.__main__ import main
from partial_fc_tools.index import search
from partial_fc_tools.inference.index import Index, read_index
from tiny_onnx import TinyModel

PEOPLE = 6
MODEL = ("--model", "backbone.onnx")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with a model, a query, and a folder of lossless images of six persons."""
    monkeypatch.chdir(tmp_path)
    for person in range(PEOPLE):
        os.makedirs(f"faces/{person}")
        cv2.imwrite(f"faces/{person}/0.png", draw_face(4, person, 0)[:, :, ::-1])
    cv2.imwrite("query.png", draw_face(4, 2, 1)[:, :, ::-1])
    TinyModel().write(tmp_path / "backbone.onnx")
    return tmp_path


def slow_ranking(mirrored=True):
    """Returns the expected lines of the table."""
    model = TinyModel()
    query = model.slow_unit(draw_face(4, 2, 1), mirrored)
    faces = {f"{person}/0.png": draw_face(4, person, 0) for person in range(PEOPLE)}
    results = [(float(query @ model.slow_unit(face, mirrored)), name) for name, face in faces.items()]
    results.sort(reverse=True)
    lines = ["rank  similarity  name"]
    return lines + [f"{rank:4}  {value:10.4f}  {name}" for rank, (value, name) in enumerate(results, 1)]


def run(*arguments):
    return main(["search", "query.png", *MODEL, *arguments])


@pytest.mark.parametrize("options, mirrored", [([], True), (["--no-flip"], False), (["--batch-size", "2"], True)])
def test_a_folder_and_its_index_rank_equally(folder, capsys, options, mirrored):
    assert run("faces", *options) == 0
    assert capsys.readouterr().out.splitlines() == slow_ranking(mirrored)
    assert run("faces", *options, "--top", "3") == 0
    assert capsys.readouterr().out.splitlines() == slow_ranking(mirrored)[:4]
    assert main(["embed", "faces", "--model", "backbone.onnx", "--out", "known", *options]) == 0
    capsys.readouterr()
    for name in ("known", "known.npy"):
        assert run("--index", name, *options) == 0
        out, remarks = capsys.readouterr()
        assert out.splitlines() == slow_ranking(mirrored) and remarks == "exact search in 6 embeddings\n"
    assert exit_code("search", "query.png", *MODEL, "--index", "known", *options, "--json", "--quiet") == 0
    out, remarks = capsys.readouterr()
    rows = [f"{row['rank']:4}  {row['similarity']:10.4f}  {row['name']}" for row in json.loads(out)]
    assert rows == slow_ranking(mirrored)[1:] and remarks == ""


@pytest.mark.parametrize("in_attribute", [False, True])
def test_embeddings_of_a_model_with_other_external_weights_are_refused(in_attribute, folder, capsys):
    for seed, embedded in ((3, True), (4, False)):
        model = TinyModel(seed=seed)
        if in_attribute:
            model.weight_in_attribute()
        model.write_in_two(folder / "backbone.onnx", convert_attributes=in_attribute)
        if embedded:
            graph = (folder / "backbone.onnx").read_bytes()
            assert main(["embed", "faces", "--model", "backbone.onnx", "--out", "known"]) == 0
            assert run("--index", "known") == 0
    (folder / "backbone.onnx").write_bytes(graph)  # only the file of the weights differs
    capsys.readouterr()
    assert run("--index", "known") == 2
    assert "known was made with another model file" in capsys.readouterr().err
    (folder / "weights.bin").unlink()
    assert run("--index", "known") == 2
    assert "weights.bin" in capsys.readouterr().err


def test_equal_similarities_keep_the_order_of_the_index():
    index = Index(np.array([[0, 1], [1, 0], [0, 1], [0.6, 0.8]], np.float32), ["d", "c", "b", "a"])
    ranked = search.most_similar(index, np.array([0, 1], np.float32), 3)
    assert ranked == [(1.0, "d"), (1.0, "b"), (pytest.approx(0.8), "a")]
    assert len(search.most_similar(index, np.array([0, 1], np.float32), 10)) == 4


@pytest.mark.parametrize("limit", [PEOPLE - 1, PEOPLE])
def test_above_the_limit_an_index_is_recommended(folder, capsys, monkeypatch, limit):
    assert main(["embed", "faces", "--model", "backbone.onnx", "--out", "known"]) == 0
    monkeypatch.setattr(search, "EXACT", limit)
    assert run("--index", "known") == 0
    assert ("partial-fc index build" in capsys.readouterr().err) == (limit < PEOPLE)


def test_skipped_images_are_reported(folder, capsys):
    (folder / "faces" / "0" / "x.jpg").write_text("no image")
    assert run("faces") == 1
    output = capsys.readouterr()
    assert output.out.splitlines() == slow_ranking()
    assert output.err.startswith("skipped: faces/0/x.jpg cannot be decoded")


@pytest.mark.parametrize("arguments", [[], ["faces", "--index", "known"], ["faces", "--top", "0"]])
def test_wrong_arguments(folder, arguments):
    assert exit_code("search", "query.png", "--model", "backbone.onnx", *arguments) == 2


@pytest.mark.parametrize(
    "embeddings, message",
    [
        (np.eye(2, 16, dtype=np.float32), "known.txt has 3 lines for the 2 embeddings of known.npy"),
        (np.eye(3, 16), "known.npy holds float64 (3, 16), expected float32"),
        (np.zeros(16, np.float32), "known.npy holds float32 (16,), expected"),
        (np.diag(np.float32([1, 2, 1])), "known.npy: row 1 has length 2 instead of 1"),
        (np.diag(np.float32([1, 1, np.nan])), "known.npy: row 2 has length nan"),
        (np.eye(3, dtype=np.float32), "of dimension 3, backbone.onnx computes dimension 16"),
        (np.array([{"not": "numbers"}]), "not an array of numbers"),
        (None, "known.npy: No such file"),
    ],
)
def test_invalid_embeddings_are_refused(folder, capsys, embeddings, message):
    if embeddings is not None:
        np.save("known.npy", embeddings)
    (folder / "known.txt").write_text("a\nb\nc\n")
    assert run("--index", "known") == 2
    assert message in (error := capsys.readouterr().err), error


def test_names_may_contain_any_bytes(folder):
    os.rename(b"faces/5/0.png", b"faces/5/\xff\xc3\xa4\xe2\x80\xa8.png")  # not UTF-8; then a line separator of Unicode
    assert main(["embed", "faces", "--model", "backbone.onnx"]) == 0
    names = read_index("embeddings").names
    assert os.fsencode(names[-1]) == b"5/\xff\xc3\xa4\xe2\x80\xa8.png" and len(names) == PEOPLE
