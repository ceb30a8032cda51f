"""The classification layer as modules: PartialFC updates its centers itself, PartialFC_V2 leaves that to an optimizer.

Shapes: B local batch, R ranks, C classes, L classes of this rank, S sampled classes of this rank, E embedding.
"""

import os

import torch

from partial_fc.distributed.env import rank_info

from .center_files import center_file, load_rows, save_rows
from .device_defaults import gpu_of_rank
from .layer.center_optimizer import CenterOptimizer
from .layer.module import ClassCenters
from .layer.optimizers import SGD, RowOptimizer, optimizer_named


class PartialFC_V2(ClassCenters):
    """Partial FC for any optimizer of PyTorch: ``weight`` is a parameter with a dense gradient.

    Centers that are not in the step have a gradient of zero, but an optimizer with momentum or weight decay moves them
    nevertheless; PartialFC leaves them unchanged. Do not wrap the layer in DistributedDataParallel.

    Args:
        fp16: accepted and ignored; the layer computes in the type of ``weight``, float32 or float64, even under
            autocast.
        margin_loss, embedding_size, num_classes, sample_rate, arguments: see ClassCenters; ``folder`` and ``on_host``
            are not supported.
    """

    def __init__(
        self,
        margin_loss,
        embedding_size: int,
        num_classes: int,
        sample_rate: float = 1.0,
        fp16: bool = False,
        **arguments,
    ):
        if arguments.get("folder") or arguments.get("on_host"):
            raise ValueError("PartialFC_V2 has a dense gradient: use PartialFC for centers on the host or in files")
        super().__init__(margin_loss, embedding_size, num_classes, sample_rate, **arguments)


class PartialFC(ClassCenters):
    """Partial FC that updates the centers of a step in its backward pass, or later with ``optimizer.step()``.

    No gradient (L, E) is allocated, and centers and states outside the step do not change. A step is a call of `step`,
    or ``loss = layer(embeddings, labels); loss.backward()``; both use ``learning_rate``. A factor of the loss, such as
    a loss scale, multiplies the gradient of the embeddings, but not an update in the backward pass. With
    ``update_in_backward=False`` it also multiplies the gradient of the centers, which ``optimizer`` holds.

    Args:
        margin_softmax: the ``margin_loss`` of ClassCenters.
        num_classes, sample_rate, embedding_size, arguments: see ClassCenters.
        rank, world_size: must match the process group, whose values None selects.
        local_rank: rank of this process on its host, which selects its GPU; None takes it from the launcher.
        batch_size: accepted and ignored; a batch may have any size.
        resume: whether to read the files of `save_params`.
        prefix: folder of these files.
        momentum, weight_decay, momentum_convention: arguments of an ``optimizer`` given by name.
        optimizer: updates the centers; an object, or a name that optimizer_named accepts.
        device: see ClassCenters; None selects the GPU of this rank, see gpu_of_rank, or the CPU.

    Attributes:
        weight_mom: (L, E) float32, only with SGD: a sum of gradients, as in torch.optim.SGD, or of steps. Other
            optimizers have the attributes that their ``states`` name.

    Raises:
        OSError: With ``resume``, a file is missing or cannot be read.
        ValueError: rank and world_size do not match the process group, a file has other classes, or the optimizer does
            not exist.
    """

    optimizer: CenterOptimizer

    def __init__(
        self,
        *,
        margin_softmax,
        num_classes: int,
        sample_rate: float = 1.0,
        embedding_size: int = 512,
        rank: int | None = None,
        local_rank: int | None = None,
        world_size: int | None = None,
        batch_size: int | None = None,
        resume: bool = False,
        prefix: str = "./",
        momentum: float = 0.9,
        weight_decay: float = 5e-4,
        momentum_convention: str = "gradients",
        optimizer: RowOptimizer | str = "sgd",
        device: torch.device | str | None = None,
        **arguments,
    ):
        if isinstance(optimizer, str):
            sgd_options = {"momentum": momentum, "momentum_convention": momentum_convention}
            optimizer = optimizer_named(optimizer, weight_decay, **sgd_options)
        if device is None:
            gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
            local_rank = rank_info(os.environ).local_rank if local_rank is None else local_rank
            device = torch.device("cuda", gpu_of_rank(local_rank, gpus)) if gpus else torch.device("cpu")
        super().__init__(
            margin_softmax, embedding_size, num_classes, sample_rate, optimizer=optimizer, device=device, **arguments
        )
        self._prefix = prefix
        actual = self.collectives.rank, self.collectives.size
        if (actual[0] if rank is None else rank, actual[1] if world_size is None else world_size) != actual:
            raise ValueError(
                f"this process is rank {actual[0]} of {actual[1]} in the process group, not rank {rank} of {world_size}"
            )
        if resume:
            self.load_params()

    def forward_backward(
        self, label, features: torch.Tensor, optimizer: torch.optim.Optimizer
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Like `step`, with an optimizer's learning rate, momentum and weight decay; the tutorial calls this method.

        The optimizer itself has nothing to update: its ``step()`` leaves the centers unchanged.

        Args:
            label: the ``labels`` of step.
            features: see step.
            optimizer: torch.optim.SGD of the layer's parameters; its last parameter group is read.

        Raises:
            ValueError: The optimizer is not SGD, or has options that the update of the centers does not support.
        """
        group, row_optimizer = optimizer.param_groups[-1], self.row_optimizer
        unsupported = [key for key in ("nesterov", "dampening", "maximize") if group.get(key)]
        if unsupported or not isinstance(optimizer, torch.optim.SGD) or not isinstance(row_optimizer, SGD):
            raise ValueError(
                f"the optimizer is {type(optimizer).__name__} with the options {unsupported}: PartialFC updates its "
                "centers like torch.optim.SGD without such options; use PartialFC_V2 for other optimizers"
            )
        self.learning_rate = group["lr"]
        row_optimizer.momentum, row_optimizer.weight_decay = group["momentum"], group["weight_decay"]
        return self.step(features, label)

    def update(self) -> None:
        """Does nothing, as `forward_backward` has updated the centers; the tutorial calls this method."""

    def save_params(self) -> None:
        """Writes ``rank_<rank>_softmax_weight.pt``, a tensor (L, E) float32, and a file for each optimizer state.

        SGD's second file is ``rank_<rank>_softmax_weight_mom.pt``. It is not written with the convention "steps",
        because readers of this file expect a sum of gradients. The state of a margin such as AdaFace, and the bias of
        an objective such as BCE, are saved only by state_dict.

        Raises:
            OSError: A file cannot be written; the previous file is unchanged.
        """
        os.makedirs(self._prefix, exist_ok=True)
        with self._store.sequential_access():
            for path, field in self._files().items():
                save_rows(path, self.rows(field), self.collectives.report_progress)

    def load_params(self) -> None:
        """Reads the files that `save_params` wrote on this rank with the same number of ranks, see load_rows."""
        loaded = {field: load_rows(path, getattr(self, field).shape) for path, field in self._files().items()}
        self._store.invalidate()
        for field, saved in loaded.items():
            self.rows(field).copy_(saved)

    def _files(self) -> dict[str, str]:
        """Returns path -> name of the array in the file."""
        optimizer, rank = self.row_optimizer, self.collectives.rank
        sums_steps = isinstance(optimizer, SGD) and optimizer.momentum_convention == "steps"
        fields = ["weight"] if sums_steps else self.widths
        return {os.path.join(self._prefix, center_file(field).format(rank)): field for field in fields}
