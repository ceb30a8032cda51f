"""Writes the folder of a model hub: what huggingface_hub's upload_folder takes as it is."""

import argparse
import json
import os
import shutil

from partial_fc.export.torch_files import CONFIG, WEIGHTS
from partial_fc.training.report.readme import how_to_load, hub_metadata
from partial_fc.training.saving import ONNX_NAME
from partial_fc.utils.json_object import read_object
from partial_fc.utils.regular_files import read_regular
from partial_fc.utils.staging import staged_files
from partial_fc.utils.tables import markdown_table
from partial_fc_tools.inference.origin import files_digest
from partial_fc_tools.report.card import measured_card
from partial_fc_tools.report.card_pages import to_markdown

LARGEST = 2**20  # bytes of a config.json
README = "README.md"


def write_hub_folder(args: argparse.Namespace, out: str) -> list[str]:
    """Writes the weights, their description, the ONNX file and the card of a training to ``out``; returns the names.

    Raises:
        OSError: A file of the training is missing or cannot be read, or a file cannot be written.
        ValueError: A file is damaged, or the model cannot be verified.
    """
    for path in (os.path.join(args.model, name) for name in (CONFIG, WEIGHTS, ONNX_NAME)):
        if os.path.islink(path):  # perhaps a stranger's, to a private file that the user would upload
            raise ValueError(f"{path} is a link: replace it by the file that you want to publish")
    copied = [name for name in (WEIGHTS, ONNX_NAME) if os.path.isfile(os.path.join(args.model, name))]
    if WEIGHTS not in copied:
        raise FileNotFoundError(f"{args.model} has no {WEIGHTS}: give the output folder of a training with PyTorch")
    args.run, args.groups, args.columns, args.far, args.batch_size = args.model, None, [], 1e-3, 64  # of the card
    args.pairs = [args.pairs] if args.pairs else []
    notes = ""
    if args.notes:
        notes = f"\n{read_regular(args.notes, LARGEST).decode().strip()}\n"
    with staged_files(out, [CONFIG, README, *copied], args.force) as stage:
        config = {**read_object(os.path.join(args.model, CONFIG), LARGEST), "license": args.license}
        training, sections, *_ = measured_card(args)
        paths = [os.path.join(args.model, name) for name in copied]
        rows = [(f"`{os.path.basename(path)}`", f"{os.path.getsize(path):,}", files_digest([path])) for path in paths]
        files = "\n".join(markdown_table(("file", "bytes", "SHA-256"), rows))
        card = f"{hub_metadata(training.settings, args.license)}{to_markdown(training.name, sections)}{notes}\n"
        card += f"{how_to_load(training.settings)}\n## Files\n\n{files}\n\n"
        card += f"Written by partial-fc {config.get('partial_fc_version')}.\n"
        for name, text in ((CONFIG, json.dumps(config, indent=2) + "\n"), (README, card)):
            with open(os.path.join(stage, name), "w", encoding="utf-8", errors="replace") as file:
                file.write(text)
        for name in copied:
            shutil.copyfile(os.path.join(args.model, name), os.path.join(stage, name))
    return [CONFIG, README, *copied]
