"""Reads and writes MXNet's network description ``<prefix>-symbol.json`` without MXNet.

Format: "nodes" is a list of objects with "op" ("null" for variables, that is images and parameters), "name", "inputs"
as [node, output, version], and attributes as strings under "attrs" (in older releases "attr" or "param"). "heads" lists
the outputs in the same form as inputs.
"""

import ast
import json
from typing import Any, NamedTuple

VARIABLE, VERSION = "null", 10901
LONGEST = 10_000  # limit of parsed attributes, in characters: Python's parser needs 300 bytes each, uninterruptibly
EMBEDDING = "fc1"  # conventional name of the embedding layer; training may add layers after it


class Node(NamedTuple):
    """An operator or variable."""

    op: str
    name: str
    attributes: dict[str, str]
    inputs: list[int]  # indices of earlier nodes

    def get(self, attribute: str, default: Any) -> Any:
        """Returns an attribute as a number, tuple, bool or string, or MXNet's ``default`` if it is absent."""
        text = self.attributes.get(attribute)
        if text is None:
            return default
        if len(text) > LONGEST:
            return text
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):  # as documented for literal_eval
            return text


def read_symbol(content: str | bytes, name: str) -> list[Node]:
    """Returns the nodes that the embedding depends on, in topological order. The embedding is the last node.

    Args:
        content: content of the file.
        name: name of the file, for error messages.

    Raises:
        ValueError: the file is not a network description, or has several outputs and none is named ``fc1``.
    """
    try:
        network = json.loads(content)
        nodes = [_node(item) for item in network["nodes"]]
        heads = [head[0] for head in network["heads"]]
        ordered = all(0 <= i < number for number, node in enumerate(nodes) for i in node.inputs)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise ValueError(f"{name} is not a network description of MXNet ({error!r})") from None
    if not ordered or not nodes or not all(0 <= head < len(nodes) for head in heads):
        raise ValueError(f"{name} is damaged: a node or output refers to a node that does not precede it")
    embeddings = [number for number, node in enumerate(nodes) if node.name == EMBEDDING]
    if not embeddings and len(heads) != 1:
        raise ValueError(f"{name} has {len(heads)} outputs; expected one output, or a layer named {EMBEDDING}")
    return _dependencies(nodes, embeddings[0] if embeddings else heads[0])


def to_json(nodes: list[Node]) -> str:
    """Returns MXNet's description of a network. The last node is the output."""
    written = [
        {"op": node.op, "name": node.name, "attrs": node.attributes, "inputs": [[i, 0, 0] for i in node.inputs]}
        for node in nodes
    ]
    variables = [number for number, node in enumerate(nodes) if node.op == VARIABLE]
    version = {"mxnet_version": ["int", VERSION]}  # without it, MXNet upgrades the network as from before 1.0
    return json.dumps({"nodes": written, "arg_nodes": variables, "heads": [[len(nodes) - 1, 0, 0]], "attrs": version})


def _node(item: dict) -> Node:
    attributes: dict[str, str] = {}
    for key in ("param", "attr", "attrs"):
        attributes.update(item.get(key) or {})
    inputs = [entry[0] for entry in item["inputs"]]
    texts = (item["op"], item["name"], *attributes, *attributes.values())
    if not all(isinstance(text, str) for text in texts) or not all(type(number) is int for number in inputs):
        raise TypeError("a name is not a string, or the index of a node is not an integer")
    return Node(item["op"], item["name"], attributes, inputs)


def _dependencies(nodes: list[Node], last: int) -> list[Node]:
    """Returns the node with index ``last`` and its transitive inputs, with new indices."""
    needed = {last}
    for number in range(last, -1, -1):
        if number in needed:
            needed.update(nodes[number].inputs)
    new_index = {number: new for new, number in enumerate(sorted(needed))}
    return [nodes[number]._replace(inputs=[new_index[i] for i in nodes[number].inputs]) for number in sorted(needed)]
