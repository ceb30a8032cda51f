"""The command ``partial-fc``, and ``python -m partial_fc_tools``."""

import sys
from collections.abc import Sequence

from partial_fc import __version__
from partial_fc.utils.cli import Command, Group, run_tree, start


def tool(help_text: str, module: str) -> Command:
    """Returns the command of a module of this package."""
    return Command(help_text, f"partial_fc_tools.{module}")


SETS = {
    "align": tool("photos -> aligned faces, for pack", "sets.align"),
    "pack": tool("folder per identity -> train.rec, train.idx, property", "sets.pack"),
    "unpack": tool("train.rec -> folder per identity", "sets.unpack"),
    "merge": tool("several sets -> one, with new labels", "sets.merge"),
    "info": tool("describe a set", "sets.info"),
    "check": tool("read a set completely and report all problems by record", "sets.check"),
    "bin": tool("validation pairs <name>.bin", "sets.pairs_bin"),
    "clean": tool("a set without wrong labels, split classes and near-duplicates", "cleaning.command"),
    "sheet": tool("draw images of some identities", "sets.sheet"),
}
INDEX = {
    "build": tool("embeddings -> an index", "index.build"),
    "add": tool("add embeddings", "index.add"),
    "remove": tool("remove embeddings by name", "index.remove"),
    "merge": tool("add the entries of other indexes", "index.merge"),
    "check": tool("rank-1 recall against exact search", "index.check"),
}
CHECKPOINTS = {
    "list": tool("list the complete checkpoints of a training", "checkpoints.list"),
    "check": tool("verify checkpoints byte by byte", "checkpoints.check"),
    "map": tool("write a class map between two sets, by names", "checkpoints.map"),
}
RECIPES = {"check": tool("compare a finished training with its recipe's published results", "recipes.check")}
REPORT = {
    "card": tool("a model card: data, settings, error rates with intervals and by group", "report.card"),
    "compare": tool("curves, results and differing settings of several trainings", "report.compare"),
}
TREE = Group(
    f"Training of embeddings with Partial FC, and tools around it, version {__version__}. Each command has --help.",
    {
        "train": tool("train on this host, in one process per GPU", "train.command"),
        "sets": Group("face sets: align, create, unpack, merge, describe, check, clean, draw", SETS),
        "embed": tool("embeddings of a folder of images", "inference.embed"),
        "compare": tool("are two images of the same class, such as a person?", "inference.compare"),
        "search": tool("the most similar images of a folder or an index", "index.search"),
        "index": Group("approximate search in millions of embeddings: build, change, check", INDEX),
        "cluster": tool("clusters of embeddings -> labels for a training", "clusters.command"),
        "evaluate": tool("recall, mAP, CMC, EER, NMI and others of embeddings", "evaluate.command"),
        "verify": tool("accuracy, TAR and ROC of models on validation pairs", "verify.command"),
        "ijb": tool("evaluate a model on IJB-B or IJB-C", "ijb.command"),
        "submission": tool("check a submission to the masked-face challenge", "submission.command"),
        "plan": tool("memory of a rank, traffic and time of a step", "planner.command"),
        "checkpoints": Group("checkpoints: list, verify, map classes", CHECKPOINTS),
        "export": tool("a saved backbone of either trainer -> ONNX", "export.command"),
        "recipes": Group("arcface_torch's recipes", RECIPES),
        "report": Group("reports of trainings", REPORT),
        "hosts": tool("can these hosts train together?", "hosts.command"),
    },
)


def main(words: Sequence[str] | None = None) -> int:
    """Runs the command that ``words`` name (by default the arguments of the process); returns its exit code."""
    words = sys.argv[1:] if words is None else words
    if words[:1] == ["train"]:
        from .train.command import start as start_training

        start_training(words[1:])
    return run_tree(TREE, "partial-fc", words)


def run() -> None:
    """The entry point of the installed command."""
    start(main)


if __name__ == "__main__":
    run()
