"""The state of the layer on one rank: centers, states of their optimizer, sampler, and number of updates.

Shapes: C classes, L classes of this rank, S centers of an update, E embedding.
"""

import json
import os
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch.autograd.graph import increment_version

from partial_fc.distributed.collectives import Collectives
from partial_fc.distributed.env import cores_of_rank, rank_info
from partial_fc.layer.bank_files import Blocks, rate_limited
from partial_fc.layer.center_states import center_widths
from partial_fc.layer.initializer import center_blocks
from partial_fc.layer.sampling import NOTHING_TO_CORRECT, WeightIndexSampler
from partial_fc.layer.sharding import num_sampled, shard_of

from ..collectives import default_collectives
from .center_optimizer import CenterOptimizer
from .gradients import tiles_of_gradient
from .optimizers import RowOptimizer, RowUpdate
from .rows import Centers
from .stores import CenterStore, FileStore, HostStore, StepCenters


class RankCenters(torch.nn.Module):
    """The state that this rank keeps between steps, and its update; ``state_dict`` contains all of it.

    Attributes:
        See ClassCenters.

    Raises:
        ValueError, OSError: see ClassCenters.
    """

    def __init__(
        self,
        embedding_size: int,
        num_classes: int,
        sample_rate: float,
        *,
        optimizer: RowOptimizer | None,
        sampling_correction: bool,
        seed: int | None,
        collectives: Collectives | None,
        folder: str | None,
        on_host: bool,
        store: Callable[[int, torch.device], CenterStore],
        device: torch.device,
        requires_grad: bool,
    ):
        super().__init__()
        self.row_optimizer = optimizer
        self.optimizer = CenterOptimizer(self._update_rows) if optimizer else None
        if collectives is None:
            _require_process_group()
        self.collectives = default_collectives if collectives is None else collectives
        rank, size = self.collectives.rank, self.collectives.size
        if seed is None:
            seed = int(self.collectives.broadcast("seed", torch.randint(2**63 - 1, (), device="cpu").item()))
        shard = shard_of(num_classes, rank, size)
        self.num_classes, self.embedding_size = num_classes, embedding_size
        self.class_start, self.num_local = shard.start, shard.size
        self.sampling_correction = sampling_correction
        self.sampler = WeightIndexSampler(shard.size, shard.size, rank, shard.start, seed)
        self.sample_rate = sample_rate
        self.num_update, self._sampler_after_step = 0, self.sampler.state()
        self.in_files = bool(folder) and shard.size > 0
        self._store = self._open_store(folder, on_host, store, device)
        weight, *states = [self._store.allocate(name, width) for name, width in self.widths.items()]
        self.weight = torch.nn.Parameter(weight, requires_grad=requires_grad)
        for name, state in zip(self.states, states):
            self.register_buffer(name, state)
        self.copy_rows("weight", center_blocks(shard.start, shard.stop, embedding_size, seed))

    @property
    def states(self) -> tuple[str, ...]:
        """The names of the optimizer's states, which are attributes of the layer."""
        return tuple(self.row_optimizer.states) if self.row_optimizer else ()

    @property
    def widths(self) -> dict[str, int]:
        """Number of columns of ``weight`` and of each state, by name."""
        return center_widths(self.embedding_size, self.row_optimizer.states if self.row_optimizer else {})

    @property
    def learning_rate(self) -> float | None:
        """The ``lr`` of ``optimizer``; must be set before the first update of the centers."""
        return self.optimizer.param_groups[0]["lr"] if self.optimizer else None

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        if self.optimizer is None:
            raise AttributeError("PartialFC_V2 has no learning rate: set it in the optimizer of its weight")
        self.optimizer.param_groups[0]["lr"] = value

    @property
    def device(self) -> torch.device:
        """Where the layer computes."""
        return self.weight.device if self._store.movable else self._store.device

    @property
    def sample_rate(self) -> float:
        """Fraction of class centers that the next step samples."""
        return self._sample_rate

    @sample_rate.setter
    def sample_rate(self, value: float) -> None:
        if self.sampling_correction and value == 0:
            raise ValueError(NOTHING_TO_CORRECT)
        self.sampler.resize(num_sampled(self.num_local, value))
        self._sample_rate = value

    def synchronize(self) -> None:
        """Waits until ``weight`` and the states contain the last update.

        With ``on_host``, or with ``folder`` and a GPU, call it before reading them outside of a step; ``state_dict``
        does. Change them only with `copy_rows` or ``load_state_dict``, because rows of the next step may already have
        been copied.
        """
        self._store.synchronize()

    def sequential_access(self) -> AbstractContextManager[None]:
        """Returns a context for reading all rows in order."""
        return self._store.sequential_access()

    def rows(self, field: str) -> torch.Tensor:
        """Returns "weight" or a state, detached, after the last update."""
        self.synchronize()
        rows: torch.Tensor = getattr(self, field).detach()
        return rows

    def copy_rows(self, field: str, blocks: Blocks) -> None:
        """Writes blocks of consecutive rows to "weight" or a state, see rate_limited."""
        self._store.invalidate()
        rows, progress = getattr(self, field).detach(), self.collectives.report_progress
        for row, values in rate_limited(blocks, field, self.num_local, lambda: self._store.flush(field), progress):
            rows[row : row + len(values)] = torch.from_numpy(values)

    def _open_store(self, folder: str | None, on_host: bool, make_store, device: torch.device) -> CenterStore:
        if not self.num_local:
            return CenterStore(0, device)
        store: CenterStore = make_store(self.num_local, torch.device("cpu") if on_host else device)
        if folder:
            store = FileStore(self.num_local, folder, self.widths, self.collectives.local_size)
        if not on_host and store.device == device:
            return store
        return HostStore(store, device, cores_of_rank(self.collectives.local_size))

    def _centers(self) -> Centers:
        return Centers(self.weight.detach(), {name: getattr(self, name) for name in self.states})

    def _on_device(self, features: torch.Tensor) -> torch.Tensor:
        if self.weight.dtype not in (torch.float32, torch.float64):
            raise TypeError(
                f"the centers are {self.weight.dtype}, but must be float32 or float64, in which the labels are sent, "
                "too: set layer_dtype for faster products"
            )
        return features.to(self.device, self.weight.dtype)

    def _full_precision(self) -> AbstractContextManager[None]:
        """Returns a context that disables the caller's autocast, which would change the type of the products."""
        return torch.autocast(self.device.type, enabled=False)

    def _update_rows(self, index: torch.Tensor, gradient: torch.Tensor) -> None:
        """Updates the centers of an explicit step, see CenterOptimizer."""
        sampled = self._store.load(self._centers(), index)
        self.sampler.restore(self._sampler_after_step)
        self._apply_gradient(sampled, gradient)

    def _apply_gradient(self, sampled: StepCenters, gradient: torch.Tensor) -> None:
        """Updates centers with their gradient (S, E), in order of their local indices; overwrites the gradient."""
        update = self._update(sampled)
        for tile in tiles_of_gradient(sampled, gradient):
            update(tile)
        self._end_update(sampled)

    def _end_update(self, sampled: StepCenters) -> None:
        if sampled.classes is not None:  # the updated rows are copies, which are written back
            increment_version(self.weight)  # makes the backward pass of an earlier forward pass raise an error
            self._store.save(self._centers(), sampled)
        self.num_update += 1
        self._prefetch()  # runs while the backbone computes

    def _prefetch(self) -> None:
        """Starts to draw the classes of the next step, if not already done, and announces their rows to the store."""
        if self.sampler.num_sample < self.num_local or self._store.samples_on_host:
            self._store.prefetch(self._centers(), self.sampler.begin_draw())

    def _update(self, sampled: StepCenters) -> RowUpdate:
        """Returns the function that updates the centers of a step, given their gradients."""
        if self.row_optimizer is None or self.learning_rate is None:
            raise ValueError("the layer has no learning rate: set its attribute learning_rate before the first update")
        return RowUpdate(self.row_optimizer, sampled.centers, self.learning_rate)

    def _apply(self, *arguments, **options):
        if not self._store.movable:
            raise ValueError("the centers are on the host: the layer cannot move to another device or type")
        return super()._apply(*arguments, **options)

    def get_extra_state(self) -> torch.Tensor:
        """Returns the part of this rank's ``state_dict`` that is not an array, as JSON in uint8."""
        state = {"classes": self._classes(), "num_update": self.num_update, "sampler": self.sampler.state()}
        return torch.frombuffer(bytearray(json.dumps(state).encode()), dtype=torch.uint8)

    def set_extra_state(self, state: torch.Tensor) -> None:
        """Continues from the return value of `get_extra_state`.

        Raises:
            ValueError: The state is of another rank, or of another number of ranks.
        """
        saved = json.loads(state.cpu().numpy().tobytes())
        if saved["classes"] != self._classes():
            raise ValueError(
                "the state_dict has {} centers from class {} of {}".format(*saved["classes"])
                + ", this rank has {} from class {} of {}".format(*self._classes())
                + ": load the state_dict of this rank, or use ShardedState to change the number of ranks"
            )
        self.num_update = saved["num_update"]
        self.sampler.restore(saved["sampler"])

    def _classes(self) -> list[int]:
        return [self.num_local, self.class_start, self.num_classes]

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, strict, missing_keys, *arguments):
        self._store.invalidate()
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing_keys, *arguments)
        if prefix + "_extra_state" in missing_keys:  # arcface_torch saves only the centers
            missing_keys.remove(prefix + "_extra_state")

    def _save_to_state_dict(self, *arguments):
        self.synchronize()
        super()._save_to_state_dict(*arguments)


def _require_process_group() -> None:
    started = rank_info(os.environ).size
    if started > 1 and default_collectives.size == 1:
        raise ValueError(
            f"the launcher started {started} processes, but there is no process group: call "
            "torch.distributed.init_process_group before the layer is built"
        )
