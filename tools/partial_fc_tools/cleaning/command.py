"""Clean a face set with its own model: write a new set, a list of every change, and a report with pictures.

Finds images with wrong labels (far from their class and near another: they get that label, or are left out if it is not
certain), classes that are one person (merged), near-duplicates (left out), and with --against images and persons that
are in test sets (left out). The limits follow from how near the images of a class are to each other in this set.
Embeddings are kept in the folder --work, so that a run with other options, or after an interruption, reuses them.
changes.csv has labels of the old set; line n of class_map.txt is the old label of the new class n.
"""

import argparse
import os
from contextlib import ExitStack, closing

from partial_fc.utils.cli import add_force, add_workers, number_above_0, whole_number
from partial_fc.utils.text import plural, say
from partial_fc_tools.inference.options import add_model
from partial_fc_tools.sets.merge import check_output
from partial_fc_tools.sets.pack import FILES

EXAMPLE = """/train_tmp/mine /train_tmp/mine_clean --model models/r50-arcface-mine --against lfw.bin
data/mine data/mine_clean --model backbone.onnx --wrong remove --split keep"""
# Each limit is a quantile of a distribution in the set: option -> its default, and the values beyond the limit.
SHARES = {
    "far": (0.02, "images of other classes that come as near to a class as its typical images"),
    "near": (0.02, "typical images that do not count as near their own class"),
    "sure": (0.25, "typical images whose own class leads the next one by too little for a new label"),
    "split": (0.98, "classes whose two random halves are recognized as one person"),
    "copy": (0.05, "altered copies below the limit for near-duplicates"),
    "person": (0.5, "typical images below the limit for test persons"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("set", metavar="SET", help="folder of the set, or its train.rec")
    parser.add_argument("out", metavar="OUT", help="folder of the new set")
    add_model(parser)
    parser.add_argument(
        "--against", nargs="+", default=[], metavar="TEST", help="test sets to leave out of OUT: pairs (.bin), or sets"
    )
    parser.add_argument(
        "--wrong",
        choices=("relabel", "remove", "keep"),
        default="relabel",
        help="what to do with wrong labels (default: relabel)",
    )
    parser.add_argument(
        "--split",
        choices=("merge", "keep"),
        default="merge",
        help="what to do with several classes of one person (default: merge)",
    )
    parser.add_argument(
        "--duplicates",
        choices=("remove", "keep"),
        default="remove",
        help="what to do with near-duplicates (default: remove)",
    )
    parser.add_argument("--work", metavar="FOLDER", help="folder of the embeddings (default: OUT.work)")
    parser.add_argument("--batch-size", type=whole_number(1), default=32, help="images per batch (default: 32)")
    parser.add_argument(
        "--memory-mb",
        type=whole_number(1),
        metavar="MB",
        help="memory for comparisons (default: a quarter of the free memory)",
    )
    shares = parser.add_argument_group("shares that set the limits")
    for name, (default, text) in SHARES.items():
        shares.add_argument(
            f"--{name}-share",
            type=number_above_0("the share", 1),
            default=default,
            metavar="SHARE",
            help=f"share of {text} (default: {default})",
        )
    add_workers(parser)
    add_force(parser)


def run(args: argparse.Namespace) -> int:
    """Writes the set; returns the exit code. After an error only embeddings are left."""
    from partial_fc.utils.staging import staged_files
    from partial_fc_tools.sets.source import open_set

    from .find import find_changes
    from .new_set import CHANGES, CLASS_MAP, write_changes, write_set
    from .page import REPORT, write_page
    from .stored import working_folder

    with ExitStack() as stack:
        records = stack.enter_context(closing(open_set(args.set)))
        check_output(args.out, [records])
        files = (*FILES, CHANGES, CLASS_MAP, REPORT)
        stage = stack.enter_context(staged_files(args.out, files, args.force))
        work = args.work or f"{os.path.abspath(args.out)}.work"
        stack.enter_context(working_folder(work))
        shares = {name: getattr(args, f"{name}_share") for name in SHARES}
        findings = find_changes(records, work, shares, args)
        write_changes(stage, records, findings)
        images, identities = write_set(stage, records, findings.classes, findings.changes.new_rows)
        write_page(os.path.join(stage, REPORT), records, findings)
    for name, counts in findings.summary():
        say(f"{name}: {counts}")
    say(
        f"{args.out}: {plural(images, 'image')} of {plural(identities, 'identity', 'identities')}; every change in "
        f"{CHANGES}, pictures in {REPORT}"
    )
    return 0
