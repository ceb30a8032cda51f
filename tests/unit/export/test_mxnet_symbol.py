"""MXNet's description of a network, in its forms, and damaged."""

import json

import pytest

from partial_fc.export.mxnet_symbol import Node, read_symbol
from partial_fc.export.normalization import takes_raw_pixels
from partial_fc.export.onnx import find_checkpoint, read_checkpoint, to_onnx


def described(nodes, heads, key="attrs"):
    """nodes: (op, name, attributes, inputs)."""
    rows = [
        {"op": op, "name": name, key: attributes, "inputs": [[i, 0, 0] for i in inputs]}
        for op, name, attributes, inputs in nodes
    ]
    return json.dumps({"nodes": rows, "heads": [[head, 0, 0] for head in heads], "arg_nodes": []})


NODES = [
    ("null", "data", {}, []),
    ("null", "unused", {}, []),
    ("null", "fc1_weight", {}, []),
    ("FullyConnected", "fc1", {"num_hidden": "4", "no_bias": "True", "kernel": "(3, 3)", "act_type": "relu"}, [0, 2]),
    ("Activation", "behind", {"act_type": "relu"}, [3]),
]


@pytest.mark.parametrize("key", ["attrs", "attr", "param"])
@pytest.mark.parametrize("heads", [[3], [4], [4, 3]])
def test_it_ends_at_the_embedding(key, heads):
    nodes = read_symbol(described(NODES, heads, key), "a.json")
    assert [node.name for node in nodes] == ["data", "fc1_weight", "fc1"]
    last = nodes[-1]
    assert last.inputs == [0, 1]
    assert last.get("num_hidden", 0) == 4 and last.get("no_bias", False) is True and last.get("kernel", ()) == (3, 3)
    assert last.get("act_type", "") == "relu" and last.get("absent", 7) == 7


def test_the_only_output_is_the_embedding_where_none_is_called_so():
    nodes = [(op, name.replace("fc1", "last"), attributes, inputs) for op, name, attributes, inputs in NODES]
    assert read_symbol(described(nodes, [4]), "a.json")[-1].name == "behind"
    with pytest.raises(ValueError, match="a.json has 2 outputs, none of them called fc1"):
        read_symbol(described(nodes, [4, 3]), "a.json")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[1, 2]",
        b"{}",
        b'{"nodes": 3, "heads": []}',
        b'{"nodes": [{"op": "null"}], "heads": [[0, 0, 0]]}',
        b'{"nodes": [], "heads": [[0, 0, 0]]}',
        b"\xff\xfe",
        described([("null", "data", {}, []), ("Flatten", "fc1", {}, [1])], [1]).encode(),
        described([("null", "data", {}, []), ("Flatten", "fc1", {}, [-1])], [1]).encode(),
        described([("null", "data", {}, [])], [5]).encode(),
    ],
)
def test_what_is_no_network_is_refused(content):
    with pytest.raises(ValueError, match=r"^a\.json "):
        read_symbol(content, "a.json")


def test_a_missing_parameter_is_named():
    nodes = read_symbol(described(NODES, [3]), "a.json")
    with pytest.raises(ValueError, match="no fc1_weight, which the network needs"):
        to_onnx(nodes, {})


def test_a_network_must_end_in_embeddings():
    nodes = [Node("null", "data", {}, []), Node("Activation", "fc1", {"act_type": "relu"}, [0])]
    with pytest.raises(ValueError, match=r"fc1 gives no embeddings \(N, E\)"):
        to_onnx(nodes, {})


def touch(folder, *names):
    for name in names:
        (folder / name).write_bytes(b"")


def test_files_are_found(tmp_path):
    touch(tmp_path, "model-symbol.json", "model-0000.params", "model-0012.params", "model-2-0001.params", "x.log")
    symbol, last = (str(tmp_path / name) for name in ("model-symbol.json", "model-0012.params"))
    assert find_checkpoint(tmp_path) == (symbol, last)
    assert find_checkpoint(symbol) == (symbol, last)
    assert find_checkpoint(tmp_path / "model-0000.params") == (symbol, str(tmp_path / "model-0000.params"))


def test_an_exact_name_is_never_in_doubt(tmp_path):
    touch(tmp_path, "model-symbol.json", "model-best-symbol.json", "model-9999.params", "model-10000.params")
    touch(tmp_path, "model-best-0000.params")
    best = tuple(str(tmp_path / name) for name in ("model-best-symbol.json", "model-best-0000.params"))
    assert find_checkpoint(best[0]) == find_checkpoint(best[1]) == best
    last = str(tmp_path / "model-10000.params")
    assert find_checkpoint(tmp_path / "model-symbol.json") == (str(tmp_path / "model-symbol.json"), last)


def test_what_is_missing_or_in_doubt_is_told(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no \*-symbol.json at"):
        find_checkpoint(tmp_path)
    touch(tmp_path, "a-symbol.json")
    with pytest.raises(FileNotFoundError, match="no parameters a-<epoch>.params beside"):
        find_checkpoint(tmp_path)
    touch(tmp_path, "b-symbol.json", "b-0000.params", "a-0000.params")
    with pytest.raises(ValueError, match="holds a-symbol.json, b-symbol.json: name one of them"):
        find_checkpoint(tmp_path)
    assert find_checkpoint(tmp_path / "b-symbol.json")[1].endswith("b-0000.params")
    (tmp_path / "a-symbol.json").write_text(described(NODES, [3]))
    with pytest.raises(ValueError, match="cannot read the parameters in .*a-0000.params"):
        read_checkpoint(tmp_path / "a-symbol.json")


@pytest.mark.parametrize(
    "names, raw",
    [
        (["_minusscalar0", "_mulscalar0"], True),
        (["Sub_1", "Conv", "Div_3"], True),
        (["Conv_0", "Mul_1"], False),
        (["Sub_0", *["Conv"] * 7, "Mul_9"], False),  # the ninth node is too late
        ([], False),
    ],
)
def test_who_normalises_pixels(names, raw):
    assert takes_raw_pixels(names) is raw
