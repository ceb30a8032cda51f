"""The task of verifying speakers. settings.json and large_margin.json are the two stages of WeSpeaker's recipe."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from partial_fc.data.batch import Batch, Inputs
from partial_fc.data.order import uniform_draws
from partial_fc.training.embedder import Embedder
from partial_fc.training.tasks.evaluation import Evaluation
from partial_fc.training.tasks.task import Task
from partial_fc.utils.config import Setting
from partial_fc.utils.distances import normalized

from .recordings import Recordings, read_part
from .scores import figures


class Speakers(Task):
    """A class is a speaker, and an item a piece of an utterance.

    It trains on ``num_classes`` speakers of the set in the folder ``data_root``/``data_name``.
    """

    options = (
        Setting("frames", 200, "length of a piece, in frames of 10 ms", at_least=10),
        Setting("width", 8, "channels of the network's first stage", at_least=1),
        Setting("blocks", [1, 1, 1, 1], "blocks of its stages", item=int, at_least=1),
        Setting("stem", 4, "stride of its first convolution", at_least=1),
    )
    frames: int
    width: int
    blocks: Sequence[int]
    stem: int

    @cached_property
    def root(self) -> Path:
        """The folder of the set."""
        return Path(self.settings.data_root) / self.settings.data_name

    def prepare(self, home: str) -> None:
        """Checks that the set has been written."""
        read_part(self.root, "trained")

    def items(self) -> "Pieces":
        """Returns the pieces of the training utterances."""
        recordings = read_part(self.root, "trained")
        return Pieces(recordings, self.settings.num_classes, self.frames, self.settings.seed)

    def network_sizes(self) -> Mapping[str, Any]:
        """See Task."""
        return {"width": self.width, "blocks": list(self.blocks), "stem": self.stem}

    def evaluations(self) -> dict[str, Evaluation]:
        """Returns the trials of unseen speakers."""
        return {"trials": Trials(read_part(self.root, "unseen"))}


class Pieces:
    """Pieces of utterances, drawn anew in every epoch; see Items."""

    def __init__(self, recordings: Recordings, speakers: int, frames: int, seed: int):
        if not 0 < speakers <= recordings.speakers[-1] + 1:
            raise ValueError(f"the set has {recordings.speakers[-1] + 1} speakers: set num_classes to that or fewer")
        self.recordings, self.num_classes, self.frames, self.seed = recordings, speakers, frames, seed
        self.labels = np.asarray(recordings.speakers)[: np.searchsorted(recordings.speakers, speakers)]
        self.digest = hashlib.sha256(np.asarray(recordings.starts).tobytes()).hexdigest()  # of all lengths

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, positions: np.ndarray, epoch: int) -> Batch:
        """See Items. Shorter utterances are repeated, as in WeSpeaker: batch norms would count padding."""
        lengths = self.recordings.lengths[positions]
        share = uniform_draws(self.seed, epoch, positions, 1)
        firsts = (share * np.maximum(lengths - self.frames + 1, 1)[:, None]).astype(np.int64)
        rows = self.recordings.starts[positions][:, None] + (firsts + np.arange(self.frames)) % lengths[:, None]
        frames = self.recordings.frames[rows].astype(np.float32)
        return Batch({"frames": frames, "lengths": np.full(len(rows), self.frames)}, self.labels[positions])

    def close(self) -> None:
        """Does nothing."""


class Trials(Evaluation):
    """All pairs of whole utterances of unseen speakers, by the cosine of their embeddings."""

    figures, shares, higher_is_better = ("eer", "min_dcf"), ("eer",), False

    def __init__(self, recordings: Recordings):
        self.recordings = recordings

    def examples(self, count: int) -> Inputs:
        """See Evaluation."""
        return self.recordings.read(np.arange(count))

    def measure(self, embedder: Embedder) -> Mapping[str, float]:
        """See Evaluation. Collectives: as `Embedder.embed_by_length`."""
        embeddings = embedder.embed_by_length(self.recordings.lengths, self.recordings.read)
        return figures(normalized(embeddings), self.recordings.speakers)

    def baselines(self, report_progress: Callable[[], None]) -> dict[str, float]:
        """Returns the equal error rate by cosines of mean filter banks, after their mean over the set is subtracted."""
        rows = normalized(self.recordings.means())
        rows = normalized(rows - rows.mean(axis=0))
        return {"mean_filter_banks": figures(rows, self.recordings.speakers)["eer"]}
