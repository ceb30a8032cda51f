"""MXNet's network description in all its formats, damaged and hostile; the files of a checkpoint."""

import copy
import json
import random

import numpy as np
import pytest

from damage import check_damaged
from partial_fc.export.mxnet_symbol import read_symbol
from partial_fc.export.normalization import takes_raw_pixels
from partial_fc.export.onnx import find_checkpoint, read_checkpoint, to_onnx


def symbol_json(nodes, heads, key="attrs"):
    """Returns the file content for nodes (op, name, attributes, inputs)."""
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
def test_network_ends_at_the_embedding(key, heads):
    nodes = read_symbol(symbol_json(NODES, heads, key), "a.json")
    assert [node.name for node in nodes] == ["data", "fc1_weight", "fc1"]
    last = nodes[-1]
    assert last.inputs == [0, 1]
    assert last.get("num_hidden", 0) == 4 and last.get("no_bias", False) is True and last.get("kernel", ()) == (3, 3)
    assert last.get("act_type", "") == "relu" and last.get("absent", 7) == 7


DEEP = ["[" * 100_000 + "]" * 100_000, '{"a":' * 100_000 + "1" + "}" * 100_000, "[" * 1_000_000]


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
        symbol_json([("null", "data", {}, []), ("Flatten", "fc1", {}, [1])], [1]).encode(),
        symbol_json([("null", "data", {}, []), ("Flatten", "fc1", {}, [-1])], [1]).encode(),
        symbol_json([("null", "data", {}, [])], [5]).encode(),
        *(symbol_json([("null", "data", {"a": 0}, [])], [0]).replace("0}", text + "}").encode() for text in DEEP),
        *(f'{{"nodes": {text}, "heads": []}}'.encode() for text in DEEP),
    ],
    ids=range(10 + 2 * len(DEEP)),
)
def test_invalid_network_descriptions_are_refused(content):
    with pytest.raises(ValueError, match=r"^a\.json "):
        read_symbol(content, "a.json")


NETWORK = [
    ("null", "data", {}, []),
    ("null", "w", {}, []),
    ("Convolution", "conv", {"kernel": "(3, 3)", "num_filter": "4", "pad": "(1, 1)", "no_bias": "True"}, [0, 1]),
    *(("null", name, {}, []) for name in ("gamma", "beta", "mean", "var", "slope", "fc_w")),
    ("BatchNorm", "bn", {"fix_gamma": "False", "eps": "2e-5", "axis": "1"}, [2, 3, 4, 5, 6]),
    ("LeakyReLU", "relu", {"act_type": "prelu", "slope": "0.25"}, [9, 7]),
    ("Pooling", "pool", {"kernel": "(2, 2)", "stride": "(2, 2)", "pool_type": "max", "pad": "(0, 0)"}, [10]),
    ("FullyConnected", "fc1", {"num_hidden": "8", "no_bias": "True"}, [11, 8]),
]
ARRAYS = {
    "w": np.zeros((4, 3, 3, 3), np.float32),
    **dict.fromkeys(("gamma", "beta", "mean", "var", "slope"), np.ones(4, np.float32)),
    "fc_w": np.zeros((8, 4 * 56 * 56), np.float32),
}
TEXTS = ["3", "(3,)", "()", "None", "1e400", "-1", "(2**70, 1)", str(2**64), "[1, 2]", "{}", "x", "(('a',), 1)"]
OTHERS = [None, 1, "a", [], {}, [[]], [["a"]], [[1.5]], -1, True, {"a": 1}, [[99, 0, 0]], *TEXTS]


def test_networks_with_random_values_are_converted_or_refused():
    rng, document, refused = random.Random(32), json.loads(symbol_json(NETWORK, [12])), 0
    for _ in range(1000):
        changed, arrays = copy.deepcopy(document), dict(ARRAYS)
        node = rng.choice(changed["nodes"])
        if rng.random() < 0.2:
            arrays[rng.choice(list(arrays))] = np.zeros(rng.choice([(), (0,), (0, 5), (1,) * 5]), np.float32)
        elif node["attrs"] and rng.random() < 0.6:
            node["attrs"][rng.choice(list(node["attrs"]))] = rng.choice(OTHERS)
        else:
            node[rng.choice(["op", "name", "inputs", "attrs"])] = rng.choice(OTHERS)
        try:
            to_onnx(read_symbol(json.dumps(changed), "a.json"), arrays)
        except ValueError:
            refused += 1
    assert refused > 500
    with pytest.raises(ValueError, match="the parameters lack fc1_weight"):
        to_onnx(read_symbol(symbol_json(NODES, [3]), "a.json"), {})


def touch(folder, *names):
    for name in names:
        (folder / name).touch()


def test_find_checkpoint_returns_the_last_epoch(tmp_path):
    touch(tmp_path, "model-symbol.json", "model-0000.params", "model-9999.params", "model-2-0001.params", "x.log")
    assert find_checkpoint(tmp_path)[1] == str(tmp_path / "model-9999.params")
    touch(tmp_path, "model-10000.params")
    symbol, last = (str(tmp_path / name) for name in ("model-symbol.json", "model-10000.params"))
    assert find_checkpoint(tmp_path) == (symbol, last)
    assert find_checkpoint(symbol) == (symbol, last)
    assert find_checkpoint(tmp_path / "model-0000.params") == (symbol, str(tmp_path / "model-0000.params"))


def test_missing_and_ambiguous_files_are_reported(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no \*-symbol.json at"):
        find_checkpoint(tmp_path)
    touch(tmp_path, "a-symbol.json")
    with pytest.raises(FileNotFoundError, match="no parameters a-<epoch>.params next to"):
        find_checkpoint(tmp_path)
    touch(tmp_path, "b-symbol.json", "b-0000.params", "a-0000.params")
    with pytest.raises(ValueError, match="holds a-symbol.json, b-symbol.json: give the path of one of them"):
        find_checkpoint(tmp_path)
    assert find_checkpoint(tmp_path / "b-symbol.json")[1].endswith("b-0000.params")
    (tmp_path / "a-symbol.json").write_text(symbol_json(NODES, [3]))
    with pytest.raises(ValueError, match="cannot read the parameters in .*a-0000.params"):
        read_checkpoint(tmp_path / "a-symbol.json")


@pytest.mark.parametrize(
    "names, raw",
    [
        (["_minusscalar0", "_mulscalar0"], True),
        (["Sub_1", "Conv", "Div_3"], True),
        (["Conv_0", "Mul_1"], False),
        (["Sub_0", *["Conv"] * 6, "Mul_8"], True),
        (["Sub_0", *["Conv"] * 7, "Mul_9"], False),  # the ninth node is too late
        ([], False),
    ],
)
def test_takes_raw_pixels(names, raw):
    assert takes_raw_pixels(names) is raw


@pytest.mark.parametrize(
    "text",
    ["(" * 100_000, "-" * 1_000_000 + "1", "1+" * 100_000 + "1", "{[]: 1}", "9" * 5000, "a", "1," * 5001],
)
def test_attributes_that_are_not_or_cannot_be_parsed_are_strings(text):
    (node,) = read_symbol(symbol_json([("null", "data", {"kernel": text}, [])], [0]), "a.json")
    assert node.get("kernel", ()) == text


def test_damaged_network_descriptions(tmp_path):
    def read(path):
        with open(path, "rb") as file:
            for node in read_symbol(file.read(), path):
                for attribute in node.attributes:
                    node.get(attribute, ())

    check_damaged(tmp_path / "a.json", symbol_json(NODES, [3]).encode(), read)
