"""Writes backbone.onnx for a backbone that a trainer has saved, and compares the two.

MODEL of MXNet or the original trainer: <prefix>-symbol.json, <prefix>-<epoch>.params, or their folder. Without MXNet
the file is converted all the same, but not compared. MODEL of PyTorch, of the tutorial or arcface_torch: backbone.pth,
model.pt, checkpoint_gpu_<rank>.pt, or the folder of one; its layers tell which network it is. The training itself has
written such a file already: this is for models of other programs, and of older ones.

--half and --int8 write backbone_half.onnx and backbone_int8.onnx instead, if accuracy and TAR on --pairs fall by
--limit at most. MODEL may then be an ONNX file, too; of a folder they take backbone.onnx.
"""

import argparse
import os

from partial_fc.export.torch_files import export_torch_model, is_torch_model
from partial_fc.utils.cli import add_force, number_above_0, whole_number
from partial_fc.utils.imports import import_trainer
from partial_fc.utils.staging import staged_files
from partial_fc.utils.text import say

EXAMPLE = """models/r50-arcface-emore/model-0000.params --pairs lfw.bin
models/r50-arcface-emore --int8 --pairs lfw.bin"""
FACES = 8
MXNET = "partial_fc_mxnet.export"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("model", metavar="MODEL", help="files of either trainer, see above")
    parser.add_argument("--out", metavar="FILE", help="default: in the same folder")
    parser.add_argument("--pairs", metavar="BIN", help="validation pairs, to compare the embeddings of faces as well")
    small = parser.add_mutually_exclusive_group()
    small.add_argument("--half", action="store_true", help="weights in float16: half the size")
    small.add_argument("--int8", action="store_true", help="products in int8, calibrated on --pairs: a quarter")
    limit = number_above_0("a fall", 1)
    parser.add_argument(
        "--limit", type=limit, default=0.005, help="most that accuracy and TAR may fall (default: 0.005)"
    )
    parser.add_argument("--image-size", type=whole_number(1), default=112, help="H = W in pixels (default: 112)")
    add_force(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    from partial_fc.data.pairs_bin import read_pairs
    from partial_fc.evaluation.validation_set import decode_faces
    from partial_fc.export.model_file import HALF_NAME, INT8_NAME, model_content
    from partial_fc.training.saving import ONNX_NAME

    from .smaller import HALF, INT8

    if not os.path.exists(args.model):
        raise FileNotFoundError(f"{args.model} does not exist: give a model that MXNet or PyTorch has saved")
    if (args.half or args.int8) and not args.pairs:
        raise ValueError("a smaller file is written only if it verifies nearly as well: give --pairs, too")
    folder = args.model if os.path.isdir(args.model) else os.path.dirname(args.model)
    smaller = HALF_NAME if args.half else INT8_NAME if args.int8 else ""
    folder, name = os.path.split(args.out or os.path.join(folder, smaller or ONNX_NAME))
    # An existing file may have metadata, such as a threshold, that this one does not have.
    with staged_files(folder, [name], args.force) as stage:
        if smaller and (source := _onnx_of(args.model)):
            content, compared = model_content(source), ""
        else:
            images = read_pairs(args.pairs)[0][:FACES] if args.pairs else []
            content, compared = _export(
                args.model, args.image_size, decode_faces(images, args.image_size, args.pairs or "")
            )
        if smaller:
            content, compared = _smaller(content, HALF if args.half else INT8, args.pairs, args.limit)
        with open(os.path.join(stage, name), "wb") as file:
            file.write(content)
    say(f"{os.path.join(folder, name)}: {len(content) / 2**20:.1f} MB, the backbone of {args.model}, {compared}")
    return 0


def _onnx_of(model: str) -> str | None:
    """Returns the path of an ONNX file, if the model is one, or a folder that has one."""
    from partial_fc.export.model_file import find_model, onnx_names

    return find_model(model) if model.endswith(".onnx") or os.path.isdir(model) and onnx_names(model) else None


def _smaller(content: bytes, kind: str, pairs: str, limit: float) -> tuple[bytes, str]:
    """Returns the content of the smaller file, and its figures."""
    from .measured import make_smaller

    made = make_smaller(content, kind, pairs, limit)
    return made.content, f"{kind}, of {len(content) / 2**20:.1f} MB: {made.figures}"


def _export(model: str, image_size: int, faces) -> tuple[bytes, str]:
    """Returns the content of the file, and with what it was compared."""
    same = "the same embeddings (cosine distance below 1e-4)"
    if is_torch_model(model):
        return export_torch_model(model, image_size, faces), f"{same} as in PyTorch"
    try:
        exporter = import_trainer(MXNET)
    except (ImportError, OSError) as error:  # not installed, without Horovod, or without a library of CUDA
        from partial_fc.export.onnx import read_checkpoint, to_onnx
        from partial_fc.export.parity import check_form

        content = to_onnx(*read_checkpoint(model), (image_size, image_size))
        check_form(content)
        return content, f"not compared with MXNet: {error}"
    return exporter.export(model, image_size, faces), f"{same} as in MXNet"
