"""Training on the items of a map-style Dataset, which ``rec`` names; ``val_targets`` names held-out Datasets."""

from collections.abc import Sequence

import numpy as np

from partial_fc.data.batch import Inputs
from partial_fc.data.sources.dataset import DatasetItems
from partial_fc.data.sources.forms import is_dataset
from partial_fc.distributed.collectives import Collectives
from partial_fc.evaluation.metrics import METRICS
from partial_fc.utils.config import Setting

from .evaluation import Evaluation
from .labeled import LabeledItems
from .task import Task


class DatasetTask(Task):
    """Trains on a Dataset of any items, and measures metrics of others."""

    options = (Setting("metrics", ["recall", "map"], "metrics of val_targets", item=str, choices=tuple(METRICS)),)
    metrics: list[str]

    def prepare(self, home: str) -> None:
        """Checks that ``rec`` names a Dataset, which hf:NAME does not."""
        if not is_dataset(self.settings.rec):
            raise ValueError(
                f"task=items trains on a map-style Dataset, but rec is {self.settings.rec!r}: set "
                "rec=package.module:name"
            )

    def items(self) -> DatasetItems:
        """See Task."""
        return DatasetItems(self.settings.rec)

    def evaluations(self) -> dict[str, Evaluation]:
        """Returns the Datasets of ``val_targets`` by name; other names there are sets of a preset."""
        names = [name for name in self.settings.val_targets if is_dataset(name)]
        return {name.replace(":", "."): HeldOutDataset(name, self.metrics) for name in names}


class HeldOutDataset(LabeledItems):
    """Metrics of a Dataset.

    Args:
        dataset: package.module:name.
        metrics: see LabeledItems.
    """

    def __init__(self, dataset: str, metrics: Sequence[str]):
        super().__init__(np.empty(0, np.int64), self._read_items, metrics)
        self.dataset = dataset

    def prepare(self, name: str, collectives: Collectives) -> None:
        """See Evaluation. Collectives: all-gathers ``status.read.<name>`` and ``status.check.<name>``."""
        self.items = collectives.run_on_all_ranks(
            f"read.{name}", lambda: DatasetItems(self.dataset, setting="val_targets")
        )
        self.labels = self.items.labels
        super().prepare(name, collectives)

    def _read_items(self, start: int, stop: int) -> Inputs:
        inputs: Inputs = self.items.read(np.arange(start, stop), 0).inputs
        return inputs
