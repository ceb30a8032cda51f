"""Measures size and time of smaller ONNX files (partial-fc export --half, --int8), and accuracies of a trained model.

.venv-torch/bin/python benchmarks/small_models.py small mobilefacenet r18 r50 vit_t
.venv-torch/bin/python benchmarks/small_models.py models/small-arcface-demo/backbone.onnx data/demo/demo_val.bin

A network given by name is untrained, which does not affect size and time. Times are CPU times of one thread for one
image at a time, the minimum of several. The three files take turns, so that ratios are valid on a loaded machine, too.
"""

import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "pytorch"), str(ROOT / "tools")]
os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np  # noqa: E402

from partial_fc.data.pairs_bin import read_pairs  # noqa: E402
from partial_fc.evaluation.validation_set import decode_faces  # noqa: E402
from partial_fc.export.model import FaceModel  # noqa: E402
from partial_fc.export.parity import random_faces  # noqa: E402
from partial_fc_tools.export.smaller import to_half, to_int8  # noqa: E402
from partial_fc_tools.verify.command import verify_model  # noqa: E402

ROUNDS, FACES = 15, 64
HEAD = (
    "| network | MB (2^20): float32, half, int8 | ms/image in float32 | time of half, int8 / float32 "
    "| accuracy, TAR@FAR=0.001: float32; half; int8 |"
)


def export(network: str) -> bytes:
    """Returns the ONNX file of an untrained network."""
    import torch

    from partial_fc_torch import get_model
    from partial_fc_torch.onnx_export import OnnxExport

    torch.manual_seed(0)
    return OnnxExport(get_model(network).eval(), np.empty((0, 3, 112, 112), np.uint8))(0)


def seconds(models: list[FaceModel], face: np.ndarray) -> list[float]:
    """Returns the CPU seconds per image for each model."""
    times: list[list[float]] = [[] for _ in models]
    for _ in range(ROUNDS):
        for own, model in zip(times, models):
            start = time.process_time()
            model.embed(face)
            own.append(time.process_time() - start)
    return [min(own) for own in times]


def row(name: str, content: bytes, pairs: str) -> str:
    """Returns the row of a model in the table."""
    original = FaceModel(content, name)
    size = original.input.image_size[0]
    images, issame = read_pairs(pairs) if pairs else ([], np.empty(0, bool))
    faces = decode_faces(images[:FACES], size, pairs, 0) if pairs else random_faces((size, size), FACES)
    files = [content, to_half(content), to_int8(content, iter(np.split(original.pixels(faces), 4)))]
    models = [FaceModel(each, name) for each in files]
    first, *others = seconds(models, faces[:1])
    accuracy = "-"
    if pairs:
        found = [verify_model(model, images, issame, pairs)[0] for model in models]
        accuracy = "; ".join(f"{each.accuracy:.4f}, {each.tar_at_far:.4f}" for each in found)
    sizes, ratios = (", ".join(map("{:.1f}".format, values)) for values in (
        [len(each) / 2**20 for each in files], [each / first for each in others]
    ))  # fmt: skip
    return f"| {name} | {sizes} | {1e3 * first:.1f} | {ratios} | {accuracy} |"


def main() -> None:
    pairs = next((each for each in sys.argv[1:] if each.endswith(".bin")), "")
    print(f"{HEAD}\n|{' --- |' * 5}")
    for name in sys.argv[1:]:
        if name != pairs:
            content = Path(name).read_bytes() if name.endswith(".onnx") else export(name)
            print(row(name, content, pairs if name.endswith(".onnx") else ""), flush=True)


if __name__ == "__main__":
    main()
