"""The classification layer as modules: PartialFC updates its centers itself, PartialFC_V2 leaves that to an optimizer.

Shapes: B local batch, R ranks, C classes, L classes of this rank, S sampled classes of this rank, E embedding.
"""

from __future__ import annotations

import os
from contextlib import nullcontext

import numpy as np
import torch
from torch.autograd.graph import increment_version

from partial_fc.distributed.env import rank_info
from partial_fc.layer.sampling import label_columns
from partial_fc.layer.sgd import SGDParams

from .layer.center_files import CENTER_FILES, load_rows, save_rows
from .layer.center_gradients import DenseGradient, SGDUpdate
from .layer.class_layer import Step, StepCenters
from .layer.device import to_device
from .layer.margin_losses import CombinedMarginLoss
from .layer.sharded_centers import ShardedCenters
from .layer.staging import Staging


class PartialFC_V2(ShardedCenters):
    """Partial FC for any optimizer of PyTorch: ``weight`` is a parameter with a dense gradient.

    The gradient of centers that are not in the step is zero, but an optimizer with momentum or weight decay moves them
    all the same; PartialFC leaves them as they are. Do not wrap the layer in DistributedDataParallel.

    Args:
        fp16: accepted; the layer computes in the type of ``weight``, float32 or float64, also under autocast.
        margin_loss, embedding_size, num_classes, sample_rate, arguments: see ShardedCenters; there is no ``folder`` and
            no ``on_host``.
    """

    def __init__(
        self,
        margin_loss: CombinedMarginLoss,
        embedding_size: int,
        num_classes: int,
        sample_rate: float = 1.0,
        fp16: bool = False,
        **arguments,
    ):
        if arguments.get("folder") or arguments.get("on_host"):
            raise ValueError("PartialFC_V2 has a dense gradient: use PartialFC for centers on the host or in files")
        super().__init__(margin_loss, embedding_size, num_classes, sample_rate, **arguments)

    def _center_gradient(self, step: Step) -> DenseGradient:
        return DenseGradient(self.weight.detach(), step.gradient_scale)


class PartialFC(ShardedCenters):
    """Partial FC that updates the centers of a step in its backward pass, by SGD with momentum and weight decay.

    No gradient (L, E) exists, and all other centers and their momentum are unchanged. A step is `step`, or
    ``loss = layer(embeddings, labels); loss.backward()``; both use ``learning_rate``. A factor of the loss, such as a
    loss scale, acts on the gradient of the embeddings, not on the update of the centers.

    Args:
        margin_softmax: as ``margin_loss`` of ShardedCenters.
        num_classes, sample_rate, embedding_size, arguments: see ShardedCenters.
        rank, world_size: of this process; None takes them from the process group, which they must equal.
        local_rank: of this process on its host, which is its GPU if there are GPUs; None takes it from the launcher.
        batch_size: accepted; a batch may have any size.
        resume: reads the files of `save_params`.
        prefix: folder of the files.
        momentum, weight_decay: of the update.
        momentum_convention: of the momentum, see SGDParams.
        device: see ShardedCenters; None is the GPU ``local_rank`` if there are GPUs, otherwise the CPU.

    Attributes:
        weight_mom: (L, E) float32, a sum of gradients as in torch.optim.SGD, or of steps.
        learning_rate: of the next update; has to be set before it.

    Raises:
        OSError: ``resume``: a file is missing or cannot be read.
        ValueError: rank and world_size are not those of the process group, or a file holds other classes.
    """

    weight_mom: torch.Tensor

    def __init__(
        self,
        *,
        margin_softmax: CombinedMarginLoss,
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
        device: torch.device | str | None = None,
        **arguments,
    ):
        local_rank = rank_info(os.environ).local_rank if local_rank is None else local_rank
        device = device or (f"cuda:{local_rank}" if torch.cuda.is_available() else "cpu")
        super().__init__(margin_softmax, embedding_size, num_classes, sample_rate, device=device, **arguments)
        self._require_rank(rank, world_size)
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.momentum_convention = momentum_convention
        self.learning_rate: float | None = None
        self.weight.requires_grad_(False)
        self.register_buffer("weight_mom", self._allocate("weight_mom", device))
        self._prefix = prefix
        if self._staging_device and self.num_local:
            self._staging = Staging(self.weight.detach(), self.weight_mom, self._staging_device)
        if resume:
            self.load_params()

    def step(self, features: torch.Tensor, labels) -> tuple[torch.Tensor, torch.Tensor]:
        """Trains the centers on one batch.

        Args:
            features: (B, E) of this rank, B the same on all ranks; detached from its graph or not.
            labels: (B,) or (B, 1) integers in 0..C-1.

        Returns:
            ((B, E), R times the gradient of the mean loss by ``features``, in the type of the centers;
            mean loss over the global batch, a scalar on the CPU). Call ``features.backward`` with the first; with
            DistributedDataParallel its average over the ranks is the gradient of the mean loss.

        Raises:
            ValueError, TypeError, MissingPositiveError, FloatingPointError: on every rank, see ClassLayer.forward; no
                center has changed.
        """
        step = self._forward_step(self._on_device(features.detach()), labels)
        gradient = self._backward_step(step)[0].to(features.device)
        return gradient, torch.tensor(step.loss, dtype=gradient.dtype)  # on the host, which nobody has to wait for

    def forward_backward(
        self, label, features: torch.Tensor, optimizer: torch.optim.Optimizer
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `step`, with learning rate, momentum and weight decay of an optimizer.

        The optimizer has nothing to update itself: its ``step()`` leaves the centers as they are.

        Args:
            label: as ``labels`` of step.
            features: as of step.
            optimizer: torch.optim.SGD of the layer's parameters; its last parameter group is read.

        Raises:
            ValueError: the optimizer is another one, or has options that the update of the centers has not.
        """
        group = optimizer.param_groups[-1]
        unsupported = [key for key in ("nesterov", "dampening", "maximize") if group.get(key)]
        if unsupported or not isinstance(optimizer, torch.optim.SGD):
            raise ValueError(
                f"the optimizer is {type(optimizer).__name__} with the options {unsupported}: PartialFC updates its "
                "centers as torch.optim.SGD without such options; use PartialFC_V2 for other optimizers"
            )
        self.learning_rate, self.momentum, self.weight_decay = group["lr"], group["momentum"], group["weight_decay"]
        return self.step(features, label)

    def update(self) -> None:
        """Returns: `forward_backward` has already updated the centers. A call of the original trainer."""

    def save_params(self) -> None:
        """Writes ``rank_<rank>_softmax_weight.pt`` and ``rank_<rank>_softmax_weight_mom.pt``, tensors (L, E) float32.

        With the convention "steps" only the first: the second means a sum of gradients.

        Raises:
            OSError: a file cannot be written; the previous file is unchanged.
        """
        os.makedirs(self._prefix, exist_ok=True)
        self.synchronize()
        with self.files.sequential_access() if self.files else nullcontext():
            for path, rows in self._files().items():
                save_rows(path, rows, self.collectives.report_progress)

    def load_params(self) -> None:
        """Reads the files that `save_params` wrote on this rank with the same number of ranks, see load_rows."""
        self._forget_copies()
        loaded = [(rows, load_rows(path, rows.shape)) for path, rows in self._files().items()]
        for rows, saved in loaded:
            rows.copy_(saved)

    def _center_gradient(self, step: Step) -> SGDUpdate:
        if self.learning_rate is None:
            raise ValueError("PartialFC has no learning rate: set its attribute learning_rate before the first update")
        rates = self.learning_rate, self.momentum, self.weight_decay
        params = SGDParams(*rates, step.gradient_scale, self.momentum_convention)
        staged = step.centers.staged
        return SGDUpdate(*(staged[1:] if staged else (self.weight, self.weight_mom)), params)

    def _select(self, labels: torch.Tensor) -> StepCenters:
        if self._staging is None:
            return super()._select(labels)
        if not self._staging.is_ahead:
            self._staging.fetch_ahead(self._draw_ahead())
        on_host = self._on_host(labels)
        rows = self._staging.load(self.sample(on_host).numpy())
        if not len(rows.classes):
            return StepCenters(rows.weight, None, torch.full_like(labels, -1), rows)
        order = np.argsort(rows.classes)
        column = label_columns(on_host.numpy(), rows.classes[order], self.class_start)
        columns = to_device(np.where(column < 0, -1, order[column]), labels.device)
        return StepCenters(rows.weight, None, columns, rows)

    def _finish(self, step: Step) -> None:
        if self._staging is None or step.centers.staged is None:
            return super()._finish(step)
        increment_version(self.weight)  # an earlier forward pass has copies of rows that change now
        self._staging.store(step.centers.staged)
        self._staging.fetch_ahead(self._draw_ahead())

    def _files(self) -> dict[str, torch.Tensor]:
        paths = [os.path.join(self._prefix, name.format(self.collectives.rank)) for name in CENTER_FILES]
        return dict(
            zip(paths, [self.weight, self.weight_mom] if self.momentum_convention == "gradients" else [self.weight])
        )

    def _require_rank(self, rank: int | None, world_size: int | None) -> None:
        own = (self.collectives.rank, self.collectives.size)
        if (own[0] if rank is None else rank, own[1] if world_size is None else world_size) != own:
            raise ValueError(
                f"this process is rank {own[0]} of {own[1]} in the process group, not rank {rank} of {world_size}"
            )
