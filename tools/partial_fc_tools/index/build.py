"""Makes an index for fast, approximate search in embeddings of embed: below a million, exact search is fast enough.

Writes the folder INDEX: the embeddings in lists of near ones (IVF), in int8 or float32, and their names. partial-fc
search opens it and reads some of the lists. add, remove and merge change it without a rebuild. pip install faiss-cpu.
"""

import argparse
from contextlib import nullcontext

from partial_fc.utils.cli import add_force
from partial_fc.utils.text import say

from .ivf import DTYPES

EXAMPLE = "embeddings --out faces.index"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("embeddings", metavar="EMBEDDINGS", help="made by partial-fc embed")
    parser.add_argument("--out", metavar="INDEX", required=True, help="folder of the index")
    text = "a byte or four for each number; similarities in int8 differ by a few thousandths (default: int8)"
    parser.add_argument("--dtype", choices=list(DTYPES), default="int8", help=text)
    add_force(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    from partial_fc.utils.folder_lock import locked
    from partial_fc.utils.staging import staged_folder
    from partial_fc.utils.text import plural
    from partial_fc_tools.inference.index import read_index

    from .add import add_rows, check_distinct
    from .folder import create, files_of, is_index
    from .writer import Writer

    index = read_index(args.embeddings)
    if not index.names:
        raise ValueError(f"{args.embeddings} holds no embeddings")
    check_distinct(args.embeddings, index.names, set())
    dimension = index.embeddings.shape[1]
    replaced = locked(args.out) if is_index(args.out) else nullcontext()
    with replaced, staged_folder(args.out, args.force, files_of(args.out)) as stage:
        lists = Writer(stage, dimension, args.dtype)
        add_rows(lists, 0, index.embeddings.__getitem__, len(index.names))
        create(stage, lists, args.dtype, dimension, index.names, index.origin)
    say(f"{args.out}: {plural(len(lists), 'embedding')} of dimension {dimension} in {args.dtype}")
    return 0
