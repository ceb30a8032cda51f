"""The protocol that builds a training in a framework; partial_fc_mxnet and partial_fc_torch implement it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from partial_fc.checkpoint import ModelFormat
from partial_fc.data.batch import Inputs
from partial_fc.data.head_data import JobData
from partial_fc.data.training_data import Batches, TrainingData
from partial_fc.distributed.collectives import Collectives

from .engine import Engine
from .heads import Head
from .saved_training import ForeignCheckpoint, Pretrained
from .saving import SaveCallback
from .schedule import Epochs, RateFactor
from .tasks.task import Task
from .trackers.tracker import ScalarWriter


class Framework(Protocol):
    """Builds the parts of a training from its settings.

    Attributes:
        collectives: the collectives between the ranks.
        source_folders: folders of the framework's part of this program.
        files: files that a training writes in the framework's own formats: description -> names.
        script: path of the script that trains on this host, or PARTIAL_FC; empty if there is none.
        model_format: format of a new training.
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
        """Returns the versions of the libraries that affect a training's numbers."""

    def open_writer(self, folder: str, first_update: int) -> ScalarWriter:
        """Opens a writer of TensorBoard events on rank 0, which hides existing events from ``first_update`` on."""

    def require_device(self, settings: Any) -> None:
        """Checks, before anything is read or written, that this rank's device can run the training.

        Raises:
            ValueError: This rank has no device, or the device cannot compute in the precision of the settings.
        """

    def free_gpu_bytes(self) -> int | None:
        """Returns the free memory of this rank's GPU in bytes; None without a GPU."""

    def class_bytes(self, settings: Any) -> int:
        """Returns the bytes of a class in the bank: its centers and the states of their optimizer.

        Raises:
            ValueError: The optimizer does not exist.
        """

    def check_task(self, task: Task) -> None:
        """Raises ValueError if the framework cannot train the task."""

    def load_data(self, batches: Batches, threads: int) -> TrainingData:
        """Returns this rank's training data as batches of the framework, read by this number of threads."""

    def dummy_data(
        self, inputs: Inputs, num_classes: int, seed: int, label_shape: tuple[int, ...] = ()
    ) -> TrainingData:
        """Returns batches that repeat the same inputs, with labels from all classes, see DummyData."""

    def read_pretrained(self, path: str, with_classes: bool) -> Pretrained | None:
        """Reads weights from files in the framework's own formats.

        Args:
            path: path of the file, or of its folder.
            with_classes: whether to read the class centers.

        Returns:
            The weights; None if there is no file in a format of the framework.

        Raises:
            OSError, ValueError: A file cannot be read or is damaged; the message names it.
        """

    def read_checkpoint(self, path: str, gradient_acc: int) -> ForeignCheckpoint | None:
        """Reads a checkpoint of another program, to resume from.

        Args:
            path: path of a file, or of its folder.
            gradient_acc: micro-batches per update.

        Returns:
            The checkpoint; None if there is none in a format that the framework can read.

        Raises:
            OSError, ValueError: A file cannot be read or is damaged; the message names it.
        """

    def build_engine(
        self,
        settings: Any,
        task: Task,
        rate_factor: RateFactor,
        epochs: Epochs,
        data: JobData,
        folder: str,
        model_format: ModelFormat,
        heads: Sequence[Head] = (),
    ) -> Engine:
        """Builds the engine, with the same initial parameters on every rank.

        Args:
            settings, task, rate_factor, epochs, data: see Training.
            folder: folder in which the class centers are saved.
            model_format: format of the weights that the training starts from.
            heads: all heads of the training, the first with ``settings``; none is one head. The PyTorch trainer alone
                has several.

        Raises:
            JobError: On every rank, if one fails.
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
            settings, engine: see Training.
            folder: folder of the files.
            examples: some items, on which the ONNX file is compared with the backbone.
            metadata: (num_update, averaged=False) -> metadata of the ONNX file, by name.

        Raises:
            JobError: On every rank, if the backbone cannot be exported as ONNX.
        """
