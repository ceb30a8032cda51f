"""The task of recognizing lexemes by their word forms. settings.json is for a training on 10,000 lexemes."""

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path

import numpy as np

from partial_fc.data.item_batches import ArrayItems
from partial_fc.data.label_runs import padded
from partial_fc.data.synthetic.labels import flipped
from partial_fc.distributed.collectives import Collectives
from partial_fc.training.embedder import Embedder
from partial_fc.training.tasks.evaluation import Evaluation
from partial_fc.training.tasks.pairs import ItemPairs
from partial_fc.training.tasks.task import Task
from partial_fc.utils.config import Setting
from partial_fc.utils.distances import normalized

from .heldout import FIGURES, HeldOut, held_out, search
from .lexemes import Lexemes, Split, decode, read_set, split_lexemes

SIZES = (
    Setting("unseen", 10000, "unseen lexemes for verification", at_least=20),
    Setting("pairs", 6000, "pairs of their forms, a multiple of 20", at_least=20),
    Setting("probes", 2, "forms per unseen lexeme that are searched", at_least=1),
)


class Words(Task):
    """A class is a lexeme, and an item is one of its forms as letters (W,) uint8.

    It trains on ``num_classes`` lexemes of the set in the folder ``data_root``/``data_name``.
    """

    options = (
        *SIZES,
        Setting("wrong_labels", 0.0, "fraction of the training forms with a wrong label", at_least=0, at_most=1),
        Setting("several_labels", False, "make a form of several lexemes one item with several labels"),
    )
    unseen: int
    pairs: int
    probes: int
    wrong_labels: float
    several_labels: bool

    @cached_property
    def lexemes(self) -> Lexemes:
        """The set."""
        return read_set(Path(self.settings.data_root) / self.settings.data_name)

    @cached_property
    def split(self) -> Split:
        """The split, always with seed 0, so that trainings with different seeds are compared on the same lexemes."""
        return split_lexemes(self.lexemes, self.settings.num_classes, self.unseen, seed=0)

    @cached_property
    def held_out(self) -> HeldOut:
        """The words for verification and search."""
        return held_out(self.lexemes, self.split.unseen, self.pairs, self.probes, seed=0)

    def prepare(self, home: str) -> None:
        """Checks that the set has been written, and is large enough."""
        _ = self.split

    def items(self) -> ArrayItems:
        """Returns all forms of the lexemes to train on, or with ``several_labels`` the different ones.

        Wrong labels are drawn with seed 0, like the lexemes.
        """
        trained = self.split.trained
        counts = self.lexemes.starts[trained + 1] - self.lexemes.starts[trained]
        labels = flipped(np.repeat(np.arange(len(trained)), counts), self.wrong_labels, seed=0)
        rows = self.lexemes.forms(trained)
        if self.several_labels:
            words = self.lexemes.words(rows)
            order = words.argsort(kind="stable")
            firsts = np.flatnonzero(np.append(True, words[order[1:]] != words[order[:-1]]))
            rows, labels = rows[order[firsts]], padded(labels[order], np.diff(firsts, append=len(order)))
        return ArrayItems(self.lexemes.letters, labels, rows)

    def evaluations(self) -> dict[str, Evaluation]:
        """Returns the search and the verification of pairs."""
        return {"search": Search(self), "pairs": WordPairs(self.held_out)}


class WordPairs(ItemPairs):
    """Verification of pairs of words."""

    kinds = ("same lexeme", "different lexemes")

    def __init__(self, held: HeldOut):
        super().__init__(held.issame, lambda start, stop: held.pairs[start:stop])
        self.words = held.pairs

    def shown_items(self) -> list[str]:
        """See PairVerification."""
        return decode(self.words)


class Search(Evaluation):
    """Search of forms in the normal forms of all unseen lexemes."""

    figures = shares = FIGURES

    def __init__(self, task: Words):
        self.task, self.held = task, task.held_out

    def prepare(self, name: str, collectives: Collectives) -> None:
        """Does nothing: the words are in memory."""

    def examples(self, count: int) -> np.ndarray:
        """See Evaluation."""
        return self.held.probes[:count]

    def measure(self, embedder: Embedder) -> Mapping[str, float]:
        """See Evaluation.

        Collectives: as embed_all, then all-gathers ``status.search.<name>`` and ``search.<name>``.
        """
        probes, gallery = self.held.probes, self.held.gallery
        words = np.concatenate([probes, gallery])
        embeddings = embedder.embed_all(len(words), lambda start, stop: words[start:stop])
        collectives = embedder.collectives

        def searched() -> dict[str, float] | None:
            """Searches on rank 0 only, because the ranks of a host share its cores."""
            if collectives.rank:
                return None
            unit = normalized(embeddings)
            progress = collectives.report_progress
            return search(lambda a, b: a @ b.T, unit[: len(probes)], unit[len(probes) :], self.held.mates, progress)

        local = collectives.run_on_all_ranks(f"search.{embedder.name}", searched)
        figures: Mapping[str, float] = collectives.broadcast(f"search.{embedder.name}", local)
        return figures

    def baselines(self, report_progress: Callable[[], None]) -> dict[str, float]:
        """Returns rank-1 of edit distances and of n-grams, see baselines.py."""
        from .baselines import baselines  # not needed with baselines=False

        lexemes, held, rank1 = self.task.lexemes, self.held, {}
        trained = lexemes.letters[lexemes.forms(self.task.split.trained)]
        for name, measure in baselines(trained).items():
            probes, gallery = (measure.represent(words) for words in (held.probes, held.gallery))
            rank1[name] = search(measure.all_similarities, probes, gallery, held.mates, report_progress)["rank1"]
        return rank1
