"""What builds a training in a framework; partial_fc_mxnet and partial_fc_torch implement this protocol."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from partial_fc.checkpoint import ModelFormat
from partial_fc.data.batch import Inputs
from partial_fc.data.training_data import Batches, TrainingData
from partial_fc.distributed.collectives import Collectives

from .engine import Engine
from .saved_training import ForeignCheckpoint, Pretrained
from .saving import SaveCallback
from .schedule import RateFactor
from .tasks.task import Task
from .trackers.tracker import ScalarWriter


class Framework(Protocol):
    """Builds what a training needs, from the settings of a training.

    Attributes:
        collectives: between the ranks.
        source_folders: of the framework's part of this program.
        files: what a training writes in the framework's own formats: description -> names.
        script: path of what trains by settings on this host; empty if there is none.
        model_format: of a new training.
    """

    @property
    def script(self) -> str: ...

    @property
    def model_format(self) -> ModelFormat: ...

    @property
    def collectives(self) -> Collectives: ...

    @property
    def source_folders(self) -> Sequence[str]: ...

    @property
    def files(self) -> Mapping[str, str]: ...

    def versions(self) -> dict[str, str]:
        """Returns the versions of the libraries on which the numbers of a training depend."""

    def open_writer(self, folder: str, first_update: int) -> ScalarWriter:
        """Opens a writer of TensorBoard events, which hides those from an update on that are there; on rank 0."""

    def require_device(self, settings: Any) -> None:
        """Checks, before anything is read or written, that the device of this rank can run the training.

        Raises:
            ValueError: this rank has no device, or the device cannot compute in the precision of the settings.
        """

    def free_gpu_bytes(self) -> int | None:
        """Returns the free memory of this rank's GPU in bytes; None without a GPU."""

    def center_widths(self, settings: Any) -> Mapping[str, int]:
        """Returns the numbers per class of the centers and of each state of their optimizer, see CenterBank.widths.

        Raises:
            ValueError: there is no such optimizer.
        """

    def check_task(self, task: Task) -> None:
        """Raises ValueError if the framework cannot train the task."""

    def load_data(self, batches: Batches, threads: int) -> TrainingData:
        """Returns the training data of this rank as batches of the framework, read by so many threads."""

    def dummy_data(self, inputs: Inputs, num_classes: int, seed: int) -> TrainingData:
        """Returns batches of the same inputs with labels from all classes, see DummyData; they cost nothing to read."""

    def read_pretrained(self, path: str, with_classes: bool) -> Pretrained | None:
        """Reads weights from files in a format that only the framework can read.

        Args:
            path: of the file, or of its folder.
            with_classes: whether to read the class centers.

        Returns:
            The weights; None if there is no such file, or no such format.

        Raises:
            OSError, ValueError: a file cannot be read or is damaged; the message names it.
        """

    def read_checkpoint(self, path: str, gradient_acc: int) -> ForeignCheckpoint | None:
        """Reads a checkpoint of another program, to resume from.

        Args:
            path: of a file, or of its folder.
            gradient_acc: micro-batches of an update.

        Returns:
            The checkpoint; None if there is none in a format that the framework can read.

        Raises:
            OSError, ValueError: a file cannot be read or is damaged; the message names it.
        """

    def build_engine(
        self,
        settings: Any,
        task: Task,
        rate_factor: RateFactor,
        data: TrainingData,
        folder: str,
        model_format: ModelFormat,
    ) -> Engine:
        """Builds the engine, with the same initial parameters on every rank.

        Args:
            settings, task, rate_factor, data: of the training, see Training.
            folder: where the centers are saved.
            model_format: of what the training starts from.

        Raises:
            JobError: on every rank, if one fails.
        """

    def build_savers(
        self,
        settings: Any,
        engine: Any,
        folder: str,
        examples: Inputs,
        metadata: Callable[..., Mapping[str, str]],
    ) -> Sequence[SaveCallback]:
        """Builds the callbacks that save backbone and class centers, and checks that the backbone can be exported.

        Args:
            settings, engine: of the training, see Training.
            folder: of the files.
            examples: of some items, on which the ONNX file is compared with the backbone.
            metadata: (num_update, averaged=False) -> metadata of the ONNX file, by name.

        Raises:
            JobError: on every rank, if the backbone cannot be exported as ONNX.
        """
