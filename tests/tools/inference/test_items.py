"""embed, search and compare with a model of texts, whose inputs a function makes."""

import sys

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from command_line import exit_code
from partial_fc_tools.inference.index import read_index

LENGTH, FEATURES = 6, 4
WEIGHT = np.random.default_rng(3).normal(size=(LENGTH, FEATURES)).astype(np.float32)
WORDS = ["abc", "abd", "xyz", "bca"]


def letters(text):
    """(LENGTH,) uint8 of a text; refuses other characters than a to z."""
    if not text.isascii() or not text.islower() or len(text) > LENGTH:
        raise ValueError(f"{text!r} is not a word")
    return np.frombuffer(text.encode().ljust(LENGTH, b"\0"), np.uint8)


def raising(text):
    """Raises an error that is not a ValueError, or exits."""
    if text == "abd":
        raise KeyError(text)
    return sys.exit(0) if text == "xyz" else letters(text)


def weighted(text):
    return {"letters": letters(text), "factor": np.array([len(text)], np.float32)}


def expected(text):
    """(E,) of length 1."""
    embedding = letters(text).astype(np.float64) @ WEIGHT
    return embedding / np.sqrt(np.sum(embedding**2))


def write_model(path, *, factor=False, batch="batch", centered=False):
    """Multiplies the bytes of a word by a matrix; ``factor`` adds a second input that normalization cancels out."""
    infos = [helper.make_tensor_value_info("letters", TensorProto.UINT8, [batch, LENGTH])]
    nodes = [
        helper.make_node("Cast", ["letters"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["numbers", "weight"], ["product"]),
        helper.make_node("Mul", ["product", "factor" if factor else "one"], ["embedding"]),
    ]
    if factor:
        infos.append(helper.make_tensor_value_info("factor", TensorProto.FLOAT, [batch, 1]))
    if centered:  # by the mean of the batch
        nodes[-1].output[0] = "product_of_item"
        nodes.append(helper.make_node("ReduceMean", ["product_of_item"], ["mean"], axes=[0]))
        nodes.append(helper.make_node("Sub", ["product_of_item", "mean"], ["embedding"]))
    outputs = [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, [batch, FEATURES])]
    constants = [numpy_helper.from_array(WEIGHT, "weight"), numpy_helper.from_array(np.float32(1), "one")]
    graph = helper.make_graph(nodes, "words", infos, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=6)
    path.write_bytes(model.SerializeToString())


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words.txt").write_text("\n".join(WORDS))
    return tmp_path


@pytest.mark.parametrize("reader, factor", [("letters", False), ("weighted", True)])
@pytest.mark.parametrize("batch_size", ["1", "3"])
def test_an_index_of_texts_is_made_and_searched(place, capsys, reader, factor, batch_size):
    write_model(place / "backbone.onnx", factor=factor)
    model = ["--model", "backbone.onnx", "--reader", f"{__name__}:{reader}"]
    assert exit_code("embed", "words.txt", *model, "--batch-size", batch_size, "--out", "index") == 0
    assert "4 embeddings of dimension 4 and length 1; index.txt: names of the items" in capsys.readouterr().out
    index = read_index("index")
    assert index.names == WORDS
    np.testing.assert_allclose(index.embeddings, [expected(word) for word in WORDS], atol=1e-5)
    for source in (["--index", "index"], ["words.txt"]):
        assert exit_code("search", "abd", *source, *model, "--top", "2") == 0
        _, *lines = map(str.split, capsys.readouterr().out.splitlines())
        cosines = sorted(((expected("abd") @ expected(word), word) for word in WORDS), reverse=True)
        assert lines == [[str(rank), f"{cosine:.4f}", word] for rank, (cosine, word) in enumerate(cosines[:2], 1)]


def test_comparing_texts(place, capsys):
    write_model(place / "backbone.onnx")
    model = ["--model", "backbone.onnx", "--reader", f"{__name__}:letters", "--threshold", "4"]
    assert exit_code("compare", "abc", "xyz", *model) == 0
    out = capsys.readouterr().out
    assert f"{expected('abc') @ expected('xyz'):.4f}" in out and "same class" in out


@pytest.mark.parametrize(
    "reader, names, errors",
    [
        ("letters", ["abc", "abd", "xyz", "bca"], ["ABC: 'ABC' is not a word"]),
        ("raising", ["abc", "bca"], ["ABC: 'ABC'", "abd: KeyError: 'abd'", "xyz: SystemExit: 0"]),
    ],
)
def test_texts_that_the_function_refuses_are_skipped(place, capsys, reader, names, errors):
    write_model(place / "backbone.onnx")
    (place / "words.txt").write_text("\n\n".join([*WORDS, "ABC"]))
    model = ["--model", "backbone.onnx", "--reader", f"{__name__}:{reader}"]
    assert exit_code("embed", "words.txt", *model) == 1
    printed = capsys.readouterr().err
    assert all(f"skipped: words.txt: {error}" in printed for error in errors) and printed.count("\n") == len(errors)
    assert read_index("embeddings").names == names
    assert exit_code("embed", "words.txt", *model, "--force", "--resize") == 2
    assert "--resize are for images" in capsys.readouterr().err
    assert exit_code("search", "ABC", "--index", "embeddings", *model) == 2
    assert "error: ABC: 'ABC' is not a word" in capsys.readouterr().err


@pytest.mark.parametrize(
    "reader, change, message",
    [
        (None, {}, "that have --reader"),
        ("letters", {"batch": 2}, "expected a dynamic batch size"),
        ("weighted", {}, "backbone.onnx takes letters, and fails to run"),
        ("letters", {"factor": True}, "takes letters, factor, and fails to run"),
        ("letters", {"centered": True, "text": "abc\nxyz\n"}, "depend on the other items of a batch"),
        ("nothing", {}, "has no nothing"),
        ("letters", {"text": "\n"}, "words.txt holds no lines"),
        ("letters", {"text": "ABC\nDE\n"}, "no usable item among 2 items in words.txt"),
    ],
)
def test_what_does_not_fit_is_refused(place, capsys, reader, change, message):
    (place / "words.txt").write_text(change.pop("text", "abc\n"))
    write_model(place / "backbone.onnx", **change)
    option = ["--reader", f"{__name__}:{reader}"] if reader else []
    assert exit_code("embed", "words.txt", "--model", "backbone.onnx", *option) == 2
    assert message in capsys.readouterr().err
    assert not (place / "embeddings.npy").exists()
