"""Converts a saved backbone to backbone.onnx, and compares the embeddings of both.

Trainings write such a file themselves: this command is for models of other programs and of older versions. For
MXNet or the original trainer, MODEL is <prefix>-symbol.json, <prefix>-<epoch>.params, or their folder; without MXNet,
it is converted but not compared. For PyTorch, the tutorial or arcface_torch, MODEL is backbone.pth, model.pt,
checkpoint_gpu_<rank>.pt, or the folder of one; the network is recognized by its layers.

--half and --int8 write backbone_half.onnx and backbone_int8.onnx instead, unless accuracy or TAR on --pairs falls by
more than --limit. MODEL may then also be an ONNX file; in a folder, backbone.onnx is used.

--hf writes a folder for a model hub instead, from the output folder of a training with PyTorch: model.safetensors,
config.json, backbone.onnx, and the model card of `partial-fc report card` as README.md, with the text of --notes, such
as the command of the training and figures that you have measured.
"""

import argparse
import os

from partial_fc.export.torch_files import export_torch_model, is_torch_model
from partial_fc.utils.cli import add_force, number_above_0, whole_number
from partial_fc.utils.imports import import_trainer
from partial_fc.utils.staging import staged_files
from partial_fc.utils.text import say
from partial_fc_tools.report.card import add_author_facts

EXAMPLE = """models/r50-arcface-emore/model-0000.params --pairs lfw.bin
models/r50-arcface-emore --int8 --pairs lfw.bin
models/r50-arcface-emore --hf --license apache-2.0 --data "1,200 volunteers, 2025" --out hub"""
FACES = 8
MXNET = "partial_fc_mxnet.export"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("model", metavar="MODEL", help="saved backbone, see above")
    parser.add_argument("--out", metavar="FILE", help="file to write, with --hf a folder (default: in MODEL's folder)")
    parser.add_argument("--pairs", metavar="BIN", help="validation pairs, whose faces are used for the comparison")
    small = parser.add_mutually_exclusive_group()
    small.add_argument("--half", action="store_true", help="store weights in float16: half the size")
    small.add_argument("--int8", action="store_true", help="use int8, calibrated on --pairs: a quarter of the size")
    small.add_argument("--hf", action="store_true", help="write a folder for a model hub, such as Hugging Face's")
    add_author_facts(parser)
    parser.add_argument("--notes", metavar="FILE", help="Markdown to include in the card")
    limit, text = number_above_0("a drop", 1), "maximum drop of accuracy and TAR (default: 0.005)"
    parser.add_argument("--limit", type=limit, default=0.005, help=text)
    parser.add_argument("--image-size", type=whole_number(1), default=112, help="H = W in pixels (default: 112)")
    add_force(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    from partial_fc.data.pairs_bin import read_pairs
    from partial_fc.evaluation.validation_set import decode_faces
    from partial_fc.export.model_file import HALF_NAME, INT8_NAME, find_model, model_content, onnx_names
    from partial_fc.training.saving import ONNX_NAME

    from .measured import make_smaller
    from .smaller import HALF, INT8

    if args.hf:
        from .hub import write_hub_folder  # matplotlib and onnxruntime take a second

        out = args.out or os.path.join(args.model, "hub")
        names = write_hub_folder(args, out)
        say(f"{out}: {', '.join(names)}; upload it: huggingface_hub.upload_folder(repo_id=..., folder_path={out!r})")
        return 0
    if args.data or args.data_license or args.license or args.use or args.notes:
        raise ValueError("--data, --data-license, --license, --use and --notes go with --hf")
    if not os.path.exists(args.model):
        raise FileNotFoundError(f"{args.model} does not exist: give a model that MXNet or PyTorch has saved")
    if (args.half or args.int8) and not args.pairs:
        raise ValueError("--half and --int8 compare the smaller model with MODEL on validation pairs: give --pairs")
    folder = args.model if os.path.isdir(args.model) else os.path.dirname(args.model)
    smaller = HALF_NAME if args.half else INT8_NAME if args.int8 else ""
    folder, name = os.path.split(args.out or os.path.join(folder, smaller or ONNX_NAME))
    if not (smaller or args.out or args.force) and os.path.lexists(path := os.path.join(folder, name)):
        raise FileExistsError(
            f"{path} already exists: a finished training has written it, or an earlier export; use it, name another "
            "path with --out, or replace it with --force"
        )
    # An existing file needs --force, as it may have metadata, such as a threshold, that the new one lacks.
    with staged_files(folder, [name], args.force) as stage:
        is_onnx = args.model.endswith(".onnx") or os.path.isdir(args.model) and onnx_names(args.model)
        if smaller and is_onnx:
            content, comparison = model_content(find_model(args.model)), ""
        else:
            images = read_pairs(args.pairs)[0][:FACES] if args.pairs else []
            faces = decode_faces(images, args.image_size, args.pairs or "")
            content, comparison = _export(args.model, args.image_size, faces)
        if smaller:
            kind, megabytes = HALF if args.half else INT8, len(content) / 2**20
            content, figures = make_smaller(content, kind, args.pairs, args.limit)
            comparison = f"{kind}, of {megabytes:.1f} MB: {figures}"
        with open(os.path.join(stage, name), "wb") as file:
            file.write(content)
    say(f"{os.path.join(folder, name)}: {len(content) / 2**20:.1f} MB, the backbone of {args.model}, {comparison}")
    return 0


def _export(model: str, image_size: int, faces) -> tuple[bytes, str]:
    """Returns the content of the file, and the result of the comparison."""
    same = "the same embeddings (cosine distance below 1e-4)"
    if is_torch_model(model):
        return export_torch_model(model, image_size, faces), f"{same} as in PyTorch"
    try:
        exporter = import_trainer(MXNET)
    except (ImportError, OSError) as error:  # MXNet, Horovod or a CUDA library is missing
        from partial_fc.export.onnx import read_checkpoint, to_onnx
        from partial_fc.export.parity import check_form

        content = to_onnx(*read_checkpoint(model), (image_size, image_size))
        check_form(content)
        return content, f"not compared with MXNet: {error}"
    return exporter.export(model, image_size, faces), f"{same} as in MXNet"
