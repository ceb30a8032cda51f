"""IJB-B or IJB-C of an ONNX model: 1:1 (TAR at FAR 1e-6 .. 0.1) and 1:N (rank-1, 5, 10; TPIR at FPIR 0.01, 0.1).

Writes into the result folder, for IJBC: IJBC_scores.npy (float32, in the order of the pairs), IJBC_roc.png and .pdf,
IJBC.md, IJBC.csv and IJBC.json; those of an earlier run are replaced together.
"""

from __future__ import annotations

import argparse
import os
import sys

import cv2
import numpy as np

from partial_fc.distributed import env as launch
from partial_fc.utils.cli import run_command, whole_number
from partial_fc.utils.staging import staged_files
from partial_fc.utils.text import plural

from . import tables
from .embedding import How, check_size
from .evaluate import Results, evaluate
from .protocol import GALLERIES, IjbSet, read_protocol

EXAMPLE = "python onnx_ijbc.py --model-root models/r50 --image-path /train_tmp/IJB_release/IJBC --result-dir results"


def build_parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python onnx_ijbc.py",
        description=__doc__,
        epilog=f"example:\n  {EXAMPLE}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model-root", required=True, metavar="DIR", help="folder with an ONNX model, or the file itself")
    add("--image-path", required=True, metavar="IJBC", help="folder of the protocol, with meta/ and loose_crop/")
    add("--result-dir", required=True, metavar="OUT", help="folder for the results")
    add("--target", choices=sorted(GALLERIES), help="the protocol (default: the one that is there)")
    add("--batch-size", type=whole_number(1), default=128, help="faces the model is given at once (default: 128)")
    add("--no-flip", dest="flip", action="store_false", help="do not add the embedding of the mirrored face")
    add("--no-detector-score", dest="detector_score", action="store_false", help="do not weigh images by their score")
    add("--no-norm-score", dest="norm_score", action="store_false", help="bring embeddings to length 1 first")
    workers = launch.decode_threads(1)
    add("--workers", type=whole_number(1), default=workers, metavar="N", help=f"reading threads (default: {workers})")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """The command; returns the exit code: 0, 2 for an error, 130 or 143 when stopped."""
    args = build_parser().parse_args(arguments)
    return run_command(lambda: run(args))


def run(args: argparse.Namespace) -> int:
    """Read, evaluate, write and print. Raises OSError and ValueError for the user."""
    # Here, as onnx and onnxruntime take seconds to load, which a wrong word on the command line should not.
    from partial_fc.inference.model import FaceModel

    cv2.setNumThreads(1)  # OpenCV's own threads would fight for the cores that the workers share
    model = FaceModel.open(args.model_root)
    check_size(model.input.image_size, model.name)
    os.makedirs(args.result_dir, exist_ok=True)  # an error here should come before hours of embedding
    ijb = read_protocol(args.image_path, args.target)
    if ijb.absent:
        print(f"warning: no 1:N, as {' and '.join(ijb.absent)} cannot be found", file=sys.stderr)
    how = how_of(args)
    results = evaluate(model, ijb, how)
    print(write_results(args.result_dir, model.name, ijb, how, results), end="")
    print(f"\n{args.result_dir}: {', '.join(names_of(ijb.target))}")
    return 0


def how_of(args: argparse.Namespace) -> How:
    """The options of parsed arguments."""
    return How(args.flip, args.detector_score, args.norm_score, args.batch_size, args.workers)


def names_of(target: str) -> list[str]:
    """The files of the results; programs look for the first."""
    return [f"{target}{end}" for end in (".json", ".md", ".csv", "_scores.npy", "_roc.png", "_roc.pdf")]


def write_results(folder: str, model: str, ijb: IjbSet, how: How, results: Results) -> str:
    """All files of the results, together; returns the Markdown. Raises OSError."""
    from .curves import draw_roc

    title = f"{ijb.target}: {os.path.basename(model)}"
    counts = {"images": len(ijb.images.names), "templates": len(ijb.images.template_ids)}
    counts["pairs"] = len(ijb.pairs.left)
    text = tables.markdown(title, results) + "\n" + footer(counts, how)
    with staged_files(folder, names_of(ijb.target), force=True) as stage:
        json_path, md_path, csv_path, npy_path, *pictures = (os.path.join(stage, name) for name in names_of(ijb.target))
        np.save(npy_path, results.scores)
        draw_roc(*results.curve, title, pictures)
        contents = {
            md_path: text,
            csv_path: tables.csv_text(results),
            json_path: tables.json_text(ijb.target, model, counts, how, results),
        }
        for path, content in contents.items():
            with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(content)
    return text


def footer(counts: dict[str, int], how: How) -> str:
    """What the figures were made from, a line of Markdown."""
    sizes = ", ".join(plural(count, name[:-1]) for name, count in counts.items())
    used = {"flip": how.flip, "detector score": how.detector_score, "norm score": how.norm_score}
    return f"{sizes}; " + ", ".join(f"{name} {'on' if on else 'off'}" for name, on in used.items()) + ".\n"
