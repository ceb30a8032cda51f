"""Training on the items of a map-style Dataset, which the setting ``rec`` names, without held-out sets."""

from partial_fc.data.sources.dataset import DatasetItems
from partial_fc.data.sources.forms import is_dataset

from .task import Task


class DatasetTask(Task):
    """Trains on a Dataset of any items."""

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
