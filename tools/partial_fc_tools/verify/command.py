"""Verifies models on pairs of faces, with the definitions of the verification during training.

For each model and each set, prints the accuracy with its standard deviation over ten folds, TAR at a FAR of at most
0.001 with the measured FAR, the mean length of the embeddings, and insightface's TAR, at interpolated thresholds, if
its printed digits differ. MODEL: an .onnx file, a folder that holds one, an MXNet checkpoint, or a state_dict of
PyTorch. BIN: pairs in insightface's format. Embeddings include the mirror images, unless the model was trained with
rand_mirror=False. --out NAME writes NAME.json with the figures, and NAME_roc.png with the ROC curves of all models.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import zipfile
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from partial_fc.evaluation.roc import Roc
from partial_fc.evaluation.verification import Verification, tar_differs, too_few, verify_distances
from partial_fc.utils.cli import add_force, add_json, whole_number
from partial_fc.utils.text import say, say_json, some

from .roc_picture import Curve, draw_roc

if TYPE_CHECKING:  # onnxruntime loads only when the command runs, so that --help is fast
    from partial_fc.export.model import FaceModel

EXAMPLE = """models/r50-arcface-emore lfw.bin cfp_fp.bin
ours.onnx model.pt lfw.bin --out lfw"""
PAIRS = ".bin"
LOWEST_FAR = 1e-4  # of the picture: the curves of sets with 3,000 pairs of different people end there


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument(
        "paths", nargs="+", metavar="MODEL|BIN", help="models, and sets of pairs (files that end in .bin)"
    )
    parser.add_argument("--no-flip", action="store_true", help="do not add the embedding of the mirror image")
    parser.add_argument("--batch-size", type=whole_number(2), default=64, help="images per batch (default: 64)")
    parser.add_argument("--out", metavar="NAME", help="also write NAME.json and NAME_roc.png")
    add_force(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    from partial_fc.utils.staging import staged_files
    from partial_fc.utils.tables import format_table

    models = [path for path in args.paths if not path.endswith(PAIRS)]
    sets = [path for path in args.paths if path.endswith(PAIRS)]
    weights = [path for path in sets if zipfile.is_zipfile(path)]  # files of torch.save, such as pytorch_model.bin
    if weights:
        raise ValueError(f"not a set of pairs: {some(weights)}, although they end in .bin; rename weights to .pt")
    if not (models and sets):
        raise ValueError("give one model or more, and one set of pairs (.bin) or more")
    folder, name = os.path.split(args.out or "")
    files = [f"{name}.json", f"{name}_roc.png"]
    with staged_files(folder, files, args.force) if args.out else nullcontext() as stage:
        results, curves = verify_models(models, sets, args.batch_size, not args.no_flip)
        if stage is not None:
            with open(os.path.join(stage, files[0]), "w", encoding="utf-8", errors="replace") as file:
                file.write(json.dumps(results, indent=1) + "\n")
            draw_roc(curves, LOWEST_FAR, "Verification", [os.path.join(stage, files[1])])
    if args.json:
        say_json(results)
    else:
        print("\n".join(format_table(table_of(results))))
    for pairs, different in {row["pairs"]: row["different_pairs"] for row in results}.items():
        if few := too_few(different, results[0]["far"]):
            say(f"warning: {pairs}: {few}", sys.stderr)
    return 0


def table_of(results: list[dict[str, Any]]) -> list[list[str]]:
    """Returns the rows of a table of the figures."""
    far = results[0]["far"]
    shown = {"accuracy": "accuracy", "std": "+-", "tar_at_far": f"TAR@FAR={far:g}", "measured_far": "FAR"}
    if any(tar_differs(row["tar_at_far"], row["tar_interpolated"]) for row in results):
        shown["tar_interpolated"] = "insightface's TAR"
    shown["xnorm"] = "norm"
    rows = [[row["model"], row["pairs"], *(f"{row[figure]:.5f}" for figure in shown)] for row in results]
    return [["model", "set", *shown.values()], *rows]


def verify_models(
    models: list[str], sets: list[str], batch_size: int, flip: bool
) -> tuple[list[dict[str, Any]], dict[str, Curve]]:
    """Verifies each model on each set; returns the figures, and the ROC curves by name."""
    from partial_fc.data.pairs_bin import read_pairs
    from partial_fc.export.model import FaceModel

    results, curves = [], {}
    bases = [os.path.basename(pairs) for pairs in sets]
    names = {pairs: base if bases.count(base) == 1 else pairs for pairs, base in zip(sets, bases)}
    for path in models:
        model = FaceModel.open(path)
        for pairs in sets:
            images, issame = read_pairs(pairs)
            figures, distance, embeddings = verify_model(model, images, issame, pairs, batch_size, flip)
            result = {"model": path, "pairs": pairs, **figures._asdict()}
            result["xnorm"] = float(np.linalg.norm(embeddings, axis=1).mean())
            result["different_pairs"] = int(np.sum(~issame))
            results.append(result)
            curves[f"{path}, {names[pairs]}"] = Roc(-distance, issame).curve()
    return results, curves


def verify_model(
    model: FaceModel, images: list[bytes], issame: np.ndarray, name: str, batch_size: int = 64, flip: bool = True
) -> tuple[Verification, np.ndarray, np.ndarray]:
    """Verifies a model on the pairs of a file ``name``: 2P images, and issame (P,).

    Returns:
        The figures, squared distances (P,), and embeddings (2P, E).
    """
    from partial_fc.utils.distances import squared_distances

    embeddings = embed_pairs(model, images, name, batch_size, flip and model.mirrored)
    distance = squared_distances(embeddings[0::2], embeddings[1::2])
    return verify_distances(distance, issame, name=name), distance, embeddings


def embed_pairs(model: FaceModel, images: list[bytes], name: str, batch_size: int, mirrored: bool) -> np.ndarray:
    """Returns the embeddings (2P, E) float64 of the images of P pairs; ``mirrored`` averages in the mirror images.

    Raises:
        ValueError: an image is damaged or does not have the model's size, or its embedding is not finite; the message
            names it.
    """
    from partial_fc.evaluation.validation_set import decode_faces
    from partial_fc.utils.distances import check_finite
    from partial_fc.utils.progress import progress

    embed, share = (model.embed_with_mirrored, 0.5) if mirrored else (model.embed, 1.0)
    parts = []
    with progress(len(images), "image", os.path.basename(name)) as bar:
        for start in range(0, len(images), batch_size):
            faces = decode_faces(images[start : start + batch_size], model.input.image_size[0], name, start)
            rows = share * embed(faces, batch_size).astype(np.float64)
            check_finite(rows, [f"{model.name}: image {start + row} of {name}" for row in range(len(rows))])
            parts.append(rows)
            bar.update(len(faces))
    return np.concatenate(parts)
