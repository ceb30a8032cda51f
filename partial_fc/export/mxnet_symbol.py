"""Reader of MXNet's network description ``<prefix>-symbol.json``. Does not need MXNet.

Format: "nodes", each with "op" ("null" for variables: images and parameters), "name", "inputs" as
[node, output, version], and attributes as strings under "attrs" (older releases: "attr" or "param"); "heads" lists the
outputs in the form of inputs.
"""

import ast
import json
from typing import Any, NamedTuple

VARIABLE, VERSION = "null", 10901
LONGEST = 10_000  # characters of an attribute that is read: Python's parser takes 300 bytes for each, and no signals
EMBEDDING = "fc1"  # conventional name of the embedding layer; training may add layers after it


class Node(NamedTuple):
    """One operator or variable; ``inputs`` are indices of earlier nodes."""

    op: str
    name: str
    attributes: dict[str, str]
    inputs: list[int]

    def get(self, attribute: str, default: Any) -> Any:
        """Returns an attribute as a number, tuple, bool or string; ``default`` (that of MXNet) if it is absent."""
        text = self.attributes.get(attribute)
        if text is None:
            return default
        if len(text) > LONGEST:
            return text
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):  # all that literal_eval documents
            return text


def read_symbol(content: str | bytes, name: str) -> list[Node]:
    """Returns the nodes that the embedding depends on, in topological order; the embedding is the last one.

    ``name`` is that of the file, for error messages. Raises ValueError if the file is not a network description, or it
    has several outputs and none is named ``fc1``.
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
    """Returns the description of a network, as MXNet reads it, whose last node is its output."""
    written = [
        {"op": node.op, "name": node.name, "attrs": node.attributes, "inputs": [[i, 0, 0] for i in node.inputs]}
        for node in nodes
    ]
    variables = [number for number, node in enumerate(nodes) if node.op == VARIABLE]
    version = {"mxnet_version": ["int", VERSION]}  # else MXNet would change what versions before 1.0 have written
    return json.dumps({"nodes": written, "arg_nodes": variables, "heads": [[len(nodes) - 1, 0, 0]], "attrs": version})


def _node(item: dict) -> Node:
    attributes: dict[str, str] = {}
    for key in ("param", "attr", "attrs"):
        attributes.update(item.get(key) or {})
    inputs = [entry[0] for entry in item["inputs"]]
    texts = (item["op"], item["name"], *attributes, *attributes.values())
    if not all(isinstance(text, str) for text in texts) or not all(type(number) is int for number in inputs):
        raise TypeError("a name is no text, or a number of a node is none")
    return Node(item["op"], item["name"], attributes, inputs)


def _dependencies(nodes: list[Node], last: int) -> list[Node]:
    """Returns the node ``last`` and its transitive inputs, renumbered."""
    needed = {last}
    for number in range(last, -1, -1):
        if number in needed:
            needed.update(nodes[number].inputs)
    new_index = {number: new for new, number in enumerate(sorted(needed))}
    return [nodes[number]._replace(inputs=[new_index[i] for i in nodes[number].inputs]) for number in sorted(needed)]
