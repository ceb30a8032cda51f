"""Finds the images most similar to a query, in a folder or in an index, with an ONNX model.

Prints a table of rank, cosine similarity (-1 to 1) and name. The images must have the model's input size; faces
must be aligned. As in face verification, the embedding of an image is the sum of the embeddings of the image and its
mirror image, unless the model was trained with rand_mirror=False. An index must have been made with the same model and
the same --no-flip. Unusable images are reported and skipped; the exit code is then 1.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from partial_fc.utils.cli import add_follow_links, add_json, whole_number
from partial_fc.utils.text import remark, say, say_json
from partial_fc_tools.inference.options import add_model, add_reader, open_model, report_skipped

if TYPE_CHECKING:
    import numpy as np

    from partial_fc_tools.inference.index import Index
    from partial_fc_tools.inference.origin import Origin


EXAMPLE = "query.jpg images/ --model backbone.onnx --top 10"
EXACT = 1_000_000  # embeddings in which exact search takes half a second (docs/search.md)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    add_model(parser)
    add_reader(parser)
    add_follow_links(parser)
    parser.add_argument("query", metavar="QUERY", help="image; a text with --reader")
    text = "folder of images to search in; a text file with --reader"
    parser.add_argument("images", metavar="IMAGES", nargs="?", help=text)
    parser.add_argument("--index", help="search in embeddings made by embed, or in a folder made by index build")
    parser.add_argument("--top", type=whole_number(1), default=10, help="number of results (default: 10)")
    parser.add_argument("--batch-size", type=whole_number(1), default=32, help="images per batch (default: 32)")
    add_json(parser)


def most_similar(index: Index, query: np.ndarray, top: int) -> list[tuple[float, str]]:
    """Returns (cosine similarity, name) of the ``top`` embeddings most similar to a unit ``query`` (E,), best first.

    Equal similarities keep the order of the index.
    """
    similarities = index.embeddings @ query
    order = (-similarities).argsort(kind="stable")[:top]
    return [(float(similarities[row]), index.names[row]) for row in order]


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    if (args.images is None) == (args.index is None):
        raise ValueError("give either a folder of IMAGES or an --index to search in")
    from partial_fc.utils.progress import progress
    from partial_fc_tools.inference.index import embed_all, embed_one, origin_of

    model, items, recipe = open_model(args)
    query = embed_one(model, items, args.query, recipe)
    skipped: list[str] = []
    others: list[str] = []
    if args.index is not None:
        results = _in_index(args.index, query, model.name, origin_of(model, recipe), args.top)
    else:
        names, others = items.names(args.images)
        with progress(len(names), items.noun, "embedding") as bar:
            index, skipped = embed_all(model, items, args.images, names, recipe, bar.update)
        results = most_similar(index, query, args.top)
    if args.json:
        say_json([{"rank": rank, "similarity": cosine, "name": name} for rank, (cosine, name) in enumerate(results, 1)])
        return report_skipped(skipped, others)
    print("rank  similarity  name")
    for rank, (similarity, name) in enumerate(results, 1):
        say(f"{rank:4}  {similarity:10.4f}  {name}")
    return report_skipped(skipped, others)


def _in_index(path: str, query: np.ndarray, model: str, origin: Origin, top: int) -> list[tuple[float, str]]:
    """Searches in embeddings, or in an index of `partial-fc index`; says on stderr whether the search is exact."""
    from partial_fc_tools.inference.index import read_index

    from .folder import IndexFolder, is_index

    if is_index(path):
        folder = IndexFolder(path)
        folder.check(model, len(query), origin)
        remark(f"approximate search in {folder.manifest.entries:,} embeddings")
        ids, similarities = folder.lists.nearest(query, top)
        return [(float(cosine), folder.names[entry_id]) for entry_id, cosine in zip(ids, similarities)]
    index = read_index(path)
    if index.embeddings.shape[1] != len(query):
        raise ValueError(
            f"{path} holds embeddings of dimension {index.embeddings.shape[1]}, {model} computes dimension "
            f"{len(query)}: make the index with the same model"
        )
    if index.origin:
        origin.check(model, index.origin, path)
    count = len(index.names)
    hint = "; partial-fc index build makes that faster" if count > EXACT else ""
    remark(f"exact search in {count:,} embeddings{hint}")
    return most_similar(index, query, top)
