"""Builds an index for fast, approximate search in more than a million embeddings; for fewer, exact search is fast.

Writes the folder INDEX: inverted lists of the embeddings (IVF), in int8 or float32, and their names. partial-fc search
reads the lists nearest to its query. add, remove and merge change the index without a rebuild. Needs faiss:
pip install faiss-cpu.
"""

import argparse
from contextlib import nullcontext

from partial_fc.utils.cli import add_force
from partial_fc.utils.text import say

from .ivf import DTYPES

EXAMPLE = "embeddings --out faces.index"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("embeddings", metavar="EMBEDDINGS", help="embeddings made by partial-fc embed")
    parser.add_argument("--out", metavar="INDEX", required=True, help="folder to write the index to")
    text = "type of the stored components; int8 changes similarities by a few thousandths (default: int8)"
    parser.add_argument("--dtype", choices=list(DTYPES), default="int8", help=text)
    add_force(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    from partial_fc.utils.folder_lock import locked
    from partial_fc.utils.staging import staged_folder
    from partial_fc.utils.text import plural
    from partial_fc_tools.inference.index import read_index

    from .add import check_distinct
    from .folder import create, files_of, is_index
    from .writer import Writer

    index = read_index(args.embeddings)
    if not index.names:
        raise ValueError(f"{args.embeddings} has no embeddings")
    check_distinct(args.embeddings, index.names, set())
    dimension = index.embeddings.shape[1]
    lock = locked(args.out) if is_index(args.out) else nullcontext()
    with lock, staged_folder(args.out, args.force, files_of(args.out)) as stage:
        lists = Writer(stage, dimension, args.dtype)
        lists.add(0, index.embeddings.__getitem__, len(index.names))
        create(stage, lists, args.dtype, dimension, index.names, index.origin)
    say(f"{args.out}: {plural(len(lists), 'embedding')} of dimension {dimension} in {args.dtype}")
    return 0
