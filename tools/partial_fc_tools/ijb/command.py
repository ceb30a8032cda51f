"""Evaluates an ONNX model on IJB-B or IJB-C.

Measures 1:1 verification (TAR at FAR 1e-6 .. 0.1) and 1:N identification (rank-1, 5, 10 and TPIR at FPIR 0.01, 0.1).

Writes IJBC.md, IJBC.csv, IJBC.json, IJBC_scores.npy (float32, in the order of the pairs), IJBC_roc.png and .pdf into
the result folder, or files that begin with IJBB. --force replaces the files of an earlier run together.
"""

import argparse
import os
import sys

from partial_fc.distributed.env import decode_threads
from partial_fc.utils.cli import add_follow_links, add_force, add_json, whole_number
from partial_fc.utils.json_object import read_object
from partial_fc.utils.text import say, say_json

from .protocol import GALLERIES

LARGEST = 1 << 20  # bytes of the results, which are a few thousand
EXAMPLE = "--model-root models/r50 --image-path /train_tmp/IJB_release/IJBC --result-dir results"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    add = parser.add_argument
    add("--model-root", required=True, metavar="DIR", help="folder with an ONNX model, or its file")
    add("--image-path", required=True, metavar="IJBC", help="folder of the protocol, with meta/ and loose_crop/")
    add("--result-dir", required=True, metavar="OUT", help="folder for the results")
    add("--target", choices=sorted(GALLERIES), help="protocol (default: the one found in the folder)")
    add("--batch-size", type=whole_number(1), default=128, help="faces per batch (default: 128)")
    add("--no-flip", dest="flip", action="store_false", help="do not add the embedding of the mirror image")
    add("--no-detector-score", dest="detector_score", action="store_false", help="do not weight images by their score")
    add(
        "--no-norm-score",
        dest="norm_score",
        action="store_false",
        help="normalize image embeddings before summing them",
    )
    add_follow_links(parser)
    add_force(parser)
    add_json(parser)
    workers = decode_threads(1)
    add("--workers", type=whole_number(1), default=workers, metavar="N", help=f"reader threads (default: {workers})")


def run(args: argparse.Namespace) -> int:
    """Evaluates the model, then writes and prints the results. Raises OSError and ValueError for user errors."""
    import cv2

    from partial_fc.export.model import FaceModel
    from partial_fc.utils.staging import staged_files
    from partial_fc_tools.sets.alignment import SIZE

    from .evaluate import EmbeddingOptions, evaluate
    from .protocol import read_protocol
    from .report import result_files, write_results

    cv2.setNumThreads(1)  # OpenCV's threads would compete with the workers for cores
    model = FaceModel.open(args.model_root)
    if model.input.image_size != (SIZE, SIZE):
        height, width = model.input.image_size
        raise ValueError(f"{model.name} takes faces of {height}x{width} pixels, IJB faces are aligned to {SIZE}x{SIZE}")
    ijb = read_protocol(args.image_path, args.target, args.detector_score)
    if ijb.absent:
        say(f"warning: no 1:N evaluation, missing files: {', '.join(ijb.absent)}", sys.stderr)
    options = EmbeddingOptions(args.flip, args.detector_score, args.norm_score, args.batch_size, args.workers)
    files = result_files(ijb.target)
    with staged_files(args.result_dir, files, args.force) as stage:  # fails before hours of embedding, not after
        text = write_results(stage, model.name, ijb, options, evaluate(model, ijb, options))
    if args.json:
        say_json(read_object(os.path.join(args.result_dir, files[0]), LARGEST))
    else:
        print(text)
        say(f"{args.result_dir}: {', '.join(files)}")
    return 0
