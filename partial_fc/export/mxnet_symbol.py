"""The network that MXNet describes in ``<prefix>-symbol.json``, read without MXNet.

Format: "nodes", each with "op" ("null" for what is given from outside: images and parameters), "name", "inputs" as
[node, output, version], and attributes as text under "attrs", which older releases called "attr" or "param"; "heads"
are the outputs, as inputs are.
"""

from __future__ import annotations

import ast
import json
from typing import Any, NamedTuple

VARIABLE = "null"
EMBEDDING = "fc1"  # the layer of the field whose output is the embedding, whatever a training had put behind it


class Node(NamedTuple):
    """One operator or variable; ``inputs`` are numbers of nodes before it."""

    op: str
    name: str
    attributes: dict[str, str]
    inputs: list[int]

    def get(self, attribute: str, default: Any) -> Any:
        """An attribute as a number, tuple, bool or word; where it is not there, MXNet's own default."""
        text = self.attributes.get(attribute)
        if text is None:
            return default
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError):
            return text


def read_symbol(content: str | bytes, name: str) -> list[Node]:
    """The nodes that the embedding is computed from, each after its inputs, the embedding last.

    Args:
        content: of the file.
        name: of the file, for messages.

    Raises:
        ValueError: it is no such file, or has several outputs and none called ``fc1``.
    """
    try:
        described = json.loads(content)
        nodes = [_node(item) for item in described["nodes"]]
        heads = [head[0] for head in described["heads"]]
        sound = all(0 <= i < number for number, node in enumerate(nodes) for i in node.inputs)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{name} does not describe a network as MXNet does ({error!r})") from None
    if not sound or not nodes or not all(0 <= head < len(nodes) for head in heads):
        raise ValueError(f"{name} is damaged: a node has an input that is not before it")
    named = [number for number, node in enumerate(nodes) if node.name == EMBEDDING]
    if not named and len(heads) != 1:
        raise ValueError(f"{name} has {len(heads)} outputs, none of them called {EMBEDDING}: which is the embedding?")
    return _needed(nodes, named[0] if named else heads[0])


def _node(item: dict) -> Node:
    attributes: dict[str, str] = {}
    for key in ("param", "attr", "attrs"):
        attributes.update(item.get(key) or {})
    return Node(item["op"], item["name"], attributes, [entry[0] for entry in item["inputs"]])


def _needed(nodes: list[Node], last: int) -> list[Node]:
    """The node ``last`` and all it depends on, numbered anew."""
    wanted = {last}
    for number in range(last, -1, -1):
        if number in wanted:
            wanted.update(nodes[number].inputs)
    place = {number: new for new, number in enumerate(sorted(wanted))}
    return [nodes[number]._replace(inputs=[place[i] for i in nodes[number].inputs]) for number in sorted(wanted)]
