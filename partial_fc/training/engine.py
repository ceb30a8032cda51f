"""What a framework provides to the training: the model in training, its center bank, its data, and how to build them.

partial_fc_mxnet and partial_fc_torch implement these protocols; partial_fc.training is written against them.

Shapes: B local batch, R ranks, L classes of this rank, E embedding, H, W image size.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from partial_fc.checkpoint import ModelFormat, SavedClasses
from partial_fc.data.training_data import DataLoader, DummyData
from partial_fc.distributed.collectives import Collectives
from partial_fc.layer.label_encoding import RankFlags
from partial_fc.layer.loss_scale import LossScale
from partial_fc.layer.sampling import WeightIndexSampler

from .foreign_checkpoint import ForeignCheckpoint
from .pretrained import Pretrained
from .saving import SaveCallback
from .schedule import RateFactor
from .trackers.tracker import ScalarWriter

Arrays = dict[str, np.ndarray]
TrainingData = DataLoader[Any] | DummyData[Any]


class CenterBank(Protocol):
    """The class centers of this rank and the states of their optimizer.

    Attributes:
        class_start: first class of this rank.
        num_local, embedding_size: L and E.
        widths: numbers per class of the centers, "weight", and of each state.
        sampler: draws the classes of a step.
        in_files: whether the bank is in files instead of memory.
    """

    class_start: int
    num_local: int
    embedding_size: int
    sampler: WeightIndexSampler

    @property
    def widths(self) -> Mapping[str, int]: ...

    @property
    def in_files(self) -> bool: ...

    def set_sample_ratio(self, ratio: float) -> None:
        """Samples another part of the centers from the next step on, which draws as if it had been the part before.

        Args:
            ratio: the same on all ranks, from 0 to 1.
        """

    def sequential_access(self) -> AbstractContextManager[None]:
        """Returns a context in which all rows are read from the first to the last."""

    def host_rows(self, field: str, copied: bool) -> Iterable[np.ndarray]:
        """Returns the rows of the centers or of a state on the host.

        Without a copy those of a GPU come there part by part, as the result is read, once.

        Args:
            field: a key of ``widths``.
            copied: whether the arrays must stay the same when training continues.

        Returns:
            Consecutive parts, each (rows, width) float32.
        """

    def load_classes(self, saved: SavedClasses, class_map: np.ndarray | None = None) -> None:
        """Loads centers and, if they were saved, states.

        Args:
            saved: rows by class.
            class_map: (C,) int64, the saved class of every class of this training, or -1 for a new class, which keeps
                its initial center; None if the classes are the same.

        Raises:
            ValueError: the saved classes, their embedding size or their states differ.
        """

    def set_centers(self, rows: np.ndarray, centers: np.ndarray) -> None:
        """Sets some centers, before the first update.

        Args:
            rows: (n,) int64, ascending, places of the classes on this rank.
            centers: (n, E) float32.

        Raises:
            OSError: a file cannot be written.
        """


class Engine(Protocol):
    """A backbone and its classification layer in training, on this rank.

    Attributes:
        collectives: between the ranks.
        memory_bank: see CenterBank.
        device: where this rank computes, for the log.
        on_gpu: whether that is a GPU.
        num_classes: C, of all ranks.
        num_update: number of updates done.
        rank_flags: of this rank, sent to all ranks with the labels of the next step.
        all_rank_flags: (R,) int64, the RankFlags of all ranks in the last step.
        loss_scale: of a backbone in float16, else None.
        draws_random_numbers: whether a training step draws random numbers, such as those of dropout.
        averages_weights: whether there is a moving average of the backbone's weights.
        model_format: of weights and momentum.
    """

    num_classes: int | None
    num_update: int
    rank_flags: RankFlags
    all_rank_flags: np.ndarray
    loss_scale: LossScale | None

    @property
    def collectives(self) -> Collectives: ...

    @property
    def memory_bank(self) -> CenterBank: ...

    @property
    def device(self) -> object: ...

    @property
    def on_gpu(self) -> bool: ...

    @property
    def model_format(self) -> ModelFormat: ...

    @property
    def draws_random_numbers(self) -> bool: ...

    @property
    def averages_weights(self) -> bool: ...

    def step(self, batch: Any) -> Any:
        """Trains on one batch and increments ``num_update``; may return before the device is done.

        Returns:
            The mean loss over the global batch, see BatchEndParam.

        Raises:
            FloatingPointError: on every rank, if the loss is infinite or NaN.
        """

    def wait_for_update(self) -> None:
        """Returns when the last update is complete; until then ``loss_scale`` may be that of the update before."""

    def embed(self, pixels: np.ndarray, batch_statistics: bool = False, averaged: bool = False) -> np.ndarray:
        """Embeds faces without training on them.

        Args:
            pixels: (N, H, W, 3) uint8 RGB, N at most B.
            batch_statistics: embeds in training mode: normalizes by the statistics of this batch instead of the
                running ones, which do not change, and applies dropout.
            averaged: embeds by the moving average of the weights; only if there is one.

        Returns:
            (N, E) float32.
        """

    def average_statistics(self) -> None:
        """Replaces the running statistics by their mean over the ranks, on every rank.

        Each rank updates them with its own images only; a model to verify or save needs those of all images.
        """

    def nonfinite_parameter(self) -> str | None:
        """Returns the name of a parameter that is infinite or NaN; None if there is none."""

    def seed_generators(self, seed: int) -> None:
        """Seeds the generators from which the next step draws."""

    def parameters(self) -> Arrays:
        """Returns copies of parameters and optimizer states on the host, which are the same on every rank.

        Returns:
            ``arg:<name>`` -> float32 array, ``state:<name>:<place>`` and ``margin:<name>`` -> array.
        """

    def statistics(self) -> Arrays:
        """Returns copies of this rank's running statistics on the host: ``aux:<name>`` -> float32 array."""

    def set_weights(self, arrays: Arrays) -> None:
        """Sets all parameters and running statistics.

        Args:
            arrays: with the names of either trainer, see partial_fc.checkpoint.torch_names.

        Raises:
            ValueError: one is missing or has another shape.
        """

    def restore(self, arrays: Arrays, num_update: int) -> None:
        """Sets all parameters, running statistics, and states of the optimizer.

        Args:
            arrays: as `parameters` and `statistics` return them.
            num_update: number of updates done, which determines the learning rate.

        Raises:
            ValueError: an array is missing, unknown, or has another shape.
        """


class Framework(Protocol):
    """Builds what a training needs, from settings of default.py.

    Attributes:
        collectives: between the ranks.
        source_folders: of the framework's part of this program.
        files: what a training writes in the framework's own formats: description -> names.
        command: that trains on this host.
        model_format: of a new training.
    """

    command: str

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

    def open_writer(self, folder: str) -> ScalarWriter:
        """Opens a writer of TensorBoard events; on rank 0."""

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

    def build_data(self, settings: Any) -> TrainingData:
        """Builds the training data of this rank.

        Raises:
            OSError, ValueError: the set is missing, damaged, or does not fit the settings.
        """

    def build_dummies(self, settings: Any) -> TrainingData:
        """Builds dummy batches of the same shapes as the training data, which cost nothing to read."""

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
        self, settings: Any, rate_factor: RateFactor, data: TrainingData, folder: str, model_format: ModelFormat
    ) -> Engine:
        """Builds the engine, with the same initial parameters on every rank.

        Args:
            settings, rate_factor, data: of the training, see Training.
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
        faces: np.ndarray,
        metadata: Callable[..., Mapping[str, str]],
    ) -> Sequence[SaveCallback]:
        """Builds the callbacks that save backbone and class centers, and checks that the backbone can be exported.

        Args:
            settings, engine: of the training, see Training.
            folder: of the files.
            faces: (n, H, W, 3) uint8 RGB, on which the ONNX file is compared with the backbone.
            metadata: (num_update, averaged=False) -> metadata of the ONNX file, by name.

        Raises:
            JobError: on every rank, if the backbone cannot be exported as ONNX.
        """
