"""What a framework provides to a training that runs: the model and its center bank; framework.py has how to build them.

partial_fc_mxnet and partial_fc_torch implement these protocols; partial_fc.training is written against them.

Shapes: B local batch, R ranks, L classes of this rank, E embedding.
"""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from partial_fc.checkpoint import ModelFormat, SavedClasses
from partial_fc.data.batch import Inputs
from partial_fc.distributed.collectives import Collectives
from partial_fc.layer.label_encoding import RankFlags
from partial_fc.layer.loss_scale import LossScale
from partial_fc.layer.sampling import WeightIndexSampler

Arrays = dict[str, np.ndarray]


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

    def embed(self, inputs: Inputs, batch_statistics: bool = False, averaged: bool = False) -> np.ndarray:
        """Embeds items without training on them.

        Args:
            inputs: of N items, at most B, as those of a batch of the training.
            batch_statistics: embeds in training mode: normalizes by the statistics of this batch instead of the
                running ones, which do not change, and applies dropout.
            averaged: embeds by the moving average of the weights; only if there is one.

        Returns:
            (N, E) float32.
        """

    def average_statistics(self) -> None:
        """Replaces the running statistics by their mean over the ranks, on every rank.

        Each rank updates them with its own batches only; a model to verify or save needs those of all ranks.
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
