"""The protocols of a model in training and its center bank; framework.py has the protocol that builds them.

partial_fc_mxnet and partial_fc_torch implement these protocols, and partial_fc.training uses them.

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
    """This rank's class centers and the states of their optimizer, one row per class.

    Attributes:
        class_start: first class of this rank.
        num_local, embedding_size: L and E.
        widths: numbers per class of the centers, "weight", and of each state.
        sampler: draws the classes of a step.
        nbytes: bytes of centers and states.
        in_files: whether the bank is in files instead of memory.
    """

    class_start: int
    num_local: int
    embedding_size: int
    sampler: WeightIndexSampler

    @property
    def widths(self) -> Mapping[str, int]: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def in_files(self) -> bool: ...

    def set_sample_ratio(self, ratio: float) -> None:
        """Sets the fraction of the centers sampled from the next step on; equal on all ranks, from 0 to 1.

        The next step draws as if the ratio had been set before its classes were prefetched.
        """

    def sequential_access(self) -> AbstractContextManager[None]:
        """Returns a context in which rows are read in order, from the first to the last."""

    def host_rows(self, field: str, copied: bool) -> Iterable[np.ndarray]:
        """Returns the rows of the centers or of a state on the host.

        Without a copy, rows on a GPU are transferred part by part while the caller iterates; this works only once.

        Args:
            field: a key of ``widths``.
            copied: whether the arrays must stay the same when training continues.

        Returns:
            Consecutive parts, each (rows, width) float32, or uint16 with the bits of bfloat16.
        """

    def load_classes(self, saved: SavedClasses, class_map: np.ndarray | None = None) -> None:
        """Loads centers and, if they were saved, states.

        Args:
            saved: rows by class.
            class_map: (C,) int64, the saved class of each class of this training, or -1 for a new class, which keeps
                its initial center; None if the classes are the same.

        Raises:
            ValueError: The saved classes, their embedding size or their states differ.
        """

    def set_centers(self, rows: np.ndarray, centers: np.ndarray) -> None:
        """Sets the centers of some classes, before the first update.

        Args:
            rows: (n,) int64, ascending row numbers on this rank.
            centers: (n, E) float32.

        Raises:
            OSError: A file cannot be written.
        """


class Engine(Protocol):
    """A backbone and its classification layer in training, on this rank.

    Attributes:
        collectives: between the ranks.
        memory_bank: see CenterBank.
        banks: the bank of each head by its name in checkpoints, where the first head has the empty name of a training
            without heads; its bank is ``memory_bank``.
        head_losses: loss of each head, or of softmax and teacher, in the last step by name, as `step` returns the loss;
            empty without names.
        device: this rank's device, for the log.
        on_gpu: whether the device is a GPU.
        num_classes: C, on all ranks together.
        num_update: number of updates done.
        rank_flags: this rank's flags, sent to all ranks with the labels of the next step.
        all_rank_flags: (R,) int64, the RankFlags of all ranks in the last step.
        loss_scale: loss scale of a float16 backbone, else None.
        facts: digests of the files that it was built from, by name, the same on all ranks; for checkpoints.
        draws_random_numbers: whether a training step draws random numbers, such as for dropout.
        averages_weights: whether there is a moving average of the backbone's weights.
        model_format: format of weights and momentum.
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
    def banks(self) -> Mapping[str, CenterBank]: ...

    @property
    def head_losses(self) -> Mapping[str, Any]: ...

    @property
    def device(self) -> object: ...

    @property
    def on_gpu(self) -> bool: ...

    @property
    def model_format(self) -> ModelFormat: ...

    @property
    def facts(self) -> Mapping[str, str]: ...

    @property
    def draws_random_numbers(self) -> bool: ...

    @property
    def averages_weights(self) -> bool: ...

    def step(self, batch: Any) -> Any:
        """Trains on one batch and increments ``num_update``; may return before the device is done.

        With several heads, ``batch`` is a list with a batch of each, see HeadData.

        Returns:
            The mean loss over the global batch, see BatchEndParam; with several heads, the weighted sum of theirs.

        Raises:
            FloatingPointError: On every rank, if the loss is infinite or NaN.
        """

    def wait_for_update(self) -> None:
        """Waits until the last update and its change of ``loss_scale`` are done."""

    def embed(self, inputs: Inputs, batch_statistics: bool = False, averaged: bool = False) -> np.ndarray:
        """Embeds items without training on them.

        Args:
            inputs: N items, at most B, in the form of a training batch's inputs.
            batch_statistics: embed in training mode: normalize by the statistics of this batch instead of the running
                ones, which do not change, and apply dropout.
            averaged: embed with the moving average of the weights, which must exist.

        Returns:
            (N, E) float32.
        """

    def final_weights(self) -> AbstractContextManager[Any]:
        """Returns a context in which the backbone has the weights that a finished training verifies and saves.

        They are the mean over the last epochs with ``average_checkpoints``, otherwise the last ones.
        """

    def average_statistics(self) -> None:
        """Replaces the running statistics by their mean over the ranks, on every rank.

        Each rank updates them with its own batches only; a model to verify or save needs the mean.
        """

    def nonfinite_parameter(self) -> str | None:
        """Returns the name of a parameter that is not finite; None if all are finite."""

    def seed_generators(self, seed: int) -> None:
        """Seeds the random generators for the next step."""

    def parameters(self) -> Arrays:
        """Returns host copies of parameters and optimizer states, which are the same on every rank.

        Returns:
            ``arg:<name>`` -> float32 array; ``state:<name>:<place>``, ``margin:<name>`` and
            ``objective:<class>.<name>`` -> array.
        """

    def statistics(self) -> Arrays:
        """Returns host copies of this rank's running statistics: ``aux:<name>`` -> float32 array."""

    def set_weights(self, arrays: Arrays) -> None:
        """Sets all parameters and running statistics.

        Args:
            arrays: arrays by the names of either trainer, see partial_fc.checkpoint.torch_names.

        Raises:
            ValueError: An array is missing or has another shape.
        """

    def restore(self, arrays: Arrays, num_update: int) -> None:
        """Sets all parameters, running statistics and optimizer states.

        Args:
            arrays: arrays as returned by `parameters` and `statistics`.
            num_update: number of updates done, which determines the learning rate.

        Raises:
            ValueError: An array is missing, unknown, or has another shape.
        """
