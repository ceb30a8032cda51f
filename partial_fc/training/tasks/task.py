"""The interface of a task: its training set, the inputs of the backbone, and its evaluations."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from partial_fc.data.batch import Inputs, arrays_of, map_inputs, num_items
from partial_fc.data.item_batches import ItemBatches, Items, first_items
from partial_fc.data.label_file import FileLabels, LabelFacts
from partial_fc.data.training_data import Batches
from partial_fc.training.schedule import items_of_update
from partial_fc.utils.config import Schema, Setting, SettingsError

from .evaluation import Evaluation


class Task:
    """A task; every rank has one. A subclass implements `items`, and overrides other methods where it differs.

    Args:
        settings: settings of the training.
        options: values of the task's own settings, from ``task_options``.

    Attributes:
        pixels: whether inputs are RGB pixels (B, 3, H, W) uint8, which the framework normalizes; other inputs go to the
            backbone as they are. H and W are the ``image_size`` of `network_sizes`, if it has one.
        options: declarations of the task's own settings; their values are attributes of the task.
        settings: settings of the training.
        report_progress: called while `batches` reads labels; does nothing by default.
        label_facts: what `batches` has found in the file of the labels, or another process before; None without any.

    Raises:
        SettingsError: An option is unknown, or outside of its bounds.
    """

    pixels: ClassVar[bool] = False
    options: ClassVar[Sequence[Setting]] = ()
    report_progress: Callable[[], object] = staticmethod(lambda: None)
    label_facts: LabelFacts | None = None

    def __init__(self, settings: Any, **options: Any):
        self.settings = settings
        if options and not self.options:
            raise SettingsError(
                f"task_options sets {', '.join(options)}, but {type(self).__name__} has no settings of its own: "
                "remove them"
            )
        declared = self.schema()
        for name, value in {**declared.defaults(), **declared.read("task_options", options)}.items():
            setattr(self, name, value)

    @classmethod
    def schema(cls) -> Schema:
        """Returns the declarations of the task's own settings."""
        return Schema("Settings of the task, in task_options", *cls.options, hints={})

    def prepare(self, home: str) -> None:
        """Makes or checks the training set, on one rank of each host, before the ranks connect.

        ``partial-fc train`` and ``pytorch/run.sh`` also call it once before they start the ranks.

        Args:
            home: folder in which relative paths start.

        Raises:
            OSError, ValueError: The set is missing or cannot be made.
        """

    def items(self) -> Items:
        """Opens the training set."""
        raise NotImplementedError

    def source(self) -> str:
        """Returns the path of the training set; empty if it has no single path."""
        return ""

    def batches(self, rank: int, size: int) -> Batches:
        """Opens a rank's share of the training set.

        Raises:
            OSError, ValueError: The set is missing, damaged, or does not fit the settings.
        """
        settings, items = self.settings, self.items()
        if settings.labels:
            least, known = getattr(self, "min_images_per_class", 0), self.label_facts
            items = FileLabels(items, settings.labels, settings.num_classes, least, self.report_progress, known)
            self.label_facts = items.facts
        return ItemBatches(
            items,
            items_of_update(settings),
            settings.shuffle,
            rank,
            size,
            settings.seed,
            skip_bad_items=settings.skip_bad_images,
            labels_per_item=settings.labels_per_item,
        )

    def dummy_inputs(self, count: int, random: np.random.Generator) -> Inputs:
        """Returns ``count`` items that replace the set when speed is measured; by default its first items."""
        items = self.items()
        first = first_items(items, count)[0].inputs
        items.close()
        rows = np.arange(count) % num_items(first)
        return map_inputs(lambda array: array[rows], first)

    def network_sizes(self) -> Mapping[str, Any]:
        """Returns the network's arguments by name, except ``num_features`` and ``dropout``."""
        return {"image_size": self.settings.image_size} if self.pixels else {}

    def evaluations(self) -> dict[str, Evaluation]:
        """Returns the held-out sets by name; baselines are measured on the first one."""
        return {}

    def check_pixels(self, inputs: Inputs) -> None:
        """Raises ValueError if inputs are not RGB images (N, 3, H, W) uint8, with H and W as in `pixels`."""
        side, shape = self.network_sizes().get("image_size"), np.shape(inputs)[1:]  # () for a mapping
        fits = len(shape) == 3 and shape[0] == 3 and all(side in (None, length) for length in shape[1:])
        if not fits or getattr(inputs, "dtype", None) != np.uint8:
            arrays = arrays_of(inputs).items()
            shapes = {name: f"{getattr(array, 'dtype', type(array))} {np.shape(array)[1:]}" for name, array in arrays}
            raise ValueError(
                f"the task has pixels = True, but its items are {shapes}, expected one array, uint8 "
                f"(3, {side or 'H'}, {side or 'W'}): set image_size, or let pixels be False for other inputs"
            )
