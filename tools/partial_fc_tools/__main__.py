"""The command ``partial-fc``, and ``python -m partial_fc_tools``."""

import sys
from collections.abc import Sequence

from partial_fc import __version__
from partial_fc.utils.cli import Command, Group, run_tree, start
from partial_fc.utils.text import say

SETS = {
    "align": Command("photos -> aligned faces, for pack", "partial_fc_tools.sets.align"),
    "pack": Command("folder per identity -> train.rec, train.idx, property", "partial_fc_tools.sets.pack"),
    "unpack": Command("train.rec -> folder per identity", "partial_fc_tools.sets.unpack"),
    "merge": Command("several sets -> one, with new labels", "partial_fc_tools.sets.merge"),
    "info": Command("describe a set", "partial_fc_tools.sets.info"),
    "check": Command("read a set completely and report all problems by record", "partial_fc_tools.sets.check"),
    "bin": Command("validation pairs <name>.bin", "partial_fc_tools.sets.pairs_bin"),
    "clean": Command(
        "a set without wrong labels, split classes and near-duplicates", "partial_fc_tools.cleaning.command"
    ),
    "sheet": Command("draw images of some identities", "partial_fc_tools.sets.sheet"),
}
INDEX = {
    "build": Command("embeddings -> an index", "partial_fc_tools.index.build"),
    "add": Command("add embeddings", "partial_fc_tools.index.add"),
    "remove": Command("remove embeddings by name", "partial_fc_tools.index.remove"),
    "merge": Command("add the entries of other indexes", "partial_fc_tools.index.merge"),
    "check": Command("recall of rank 1 against exact search", "partial_fc_tools.index.check"),
}
CHECKPOINTS = {
    "list": Command("list the complete checkpoints of a training", "partial_fc_tools.checkpoints.list"),
    "check": Command("verify checkpoints byte by byte", "partial_fc_tools.checkpoints.check"),
    "map": Command("write a class map between two sets, by names", "partial_fc_tools.checkpoints.map"),
}
RECIPES = {
    "check": Command(
        "a finished training beside the published results of its recipe", "partial_fc_tools.recipes.check"
    ),
}
REPORT = {
    "card": Command(
        "a model card: data, settings, error rates with intervals and by group", "partial_fc_tools.report.card"
    ),
    "compare": Command(
        "curves, results and differing settings of several trainings", "partial_fc_tools.report.compare"
    ),
}
TREE = Group(
    f"Tools around the training of embeddings with Partial FC, version {__version__}. Each command has --help.",
    {
        "sets": Group("face sets: align, create, unpack, merge, describe, check, clean, draw", SETS),
        "embed": Command("embeddings of a folder of faces", "partial_fc_tools.inference.embed"),
        "compare": Command("do two images show the same person?", "partial_fc_tools.inference.compare"),
        "search": Command("the most similar faces of a folder or an index", "partial_fc_tools.index.search"),
        "index": Group("approximate search in millions of embeddings: build, change, check", INDEX),
        "verify": Command("accuracy, TAR and ROC of models on validation pairs", "partial_fc_tools.verify.command"),
        "ijb": Command("evaluate a model on IJB-B or IJB-C", "partial_fc_tools.ijb.command"),
        "submission": Command("check a submission to the masked-face challenge", "partial_fc_tools.submission.command"),
        "plan": Command("memory of a rank, traffic and time of a step", "partial_fc_tools.planner.command"),
        "checkpoints": Group("checkpoints: list, verify, map classes", CHECKPOINTS),
        "export": Command("a saved backbone of either trainer -> ONNX", "partial_fc_tools.export.command"),
        "recipes": Group("arcface_torch's recipes", RECIPES),
        "report": Group("reports of trainings", REPORT),
        "hosts": Command("can these hosts train together?", "partial_fc_tools.hosts.command"),
    },
)


def main(words: Sequence[str] | None = None) -> int:
    """Runs the command that ``words``, or the arguments of the process, name; returns its exit code."""
    words = sys.argv[1:] if words is None else words
    if words == ["--version"]:
        say(f"partial-fc {__version__}")
        return 0
    return run_tree(TREE, "partial-fc", words)


def run() -> None:
    """The entry point of the installed command."""
    start(main)


if __name__ == "__main__":
    run()
