"""The classification layer as modules: PartialFC updates its centers itself, PartialFC_V2 leaves that to an optimizer.

Shapes: B local batch, R ranks, C classes, L classes of this rank, S sampled classes of this rank, E embedding.
"""

import os

import torch

from partial_fc.distributed.env import rank_info

from .device_defaults import gpu_of_rank
from .layer.center_optimizer import CenterOptimizer
from .layer.module import ClassCenters
from .layer.optimizers import RowOptimizer, optimizer_named
from .tutorial import TutorialCalls


class PartialFC_V2(ClassCenters):
    """Partial FC for any optimizer of PyTorch: ``weight`` is a parameter with a dense gradient.

    The gradient of centers that are not in the step is zero, but an optimizer with momentum or weight decay moves them
    all the same; PartialFC leaves them as they are. Do not wrap the layer in DistributedDataParallel.

    Args:
        fp16: accepted; the layer computes in the type of ``weight``, float32 or float64, also under autocast.
        margin_loss, embedding_size, num_classes, sample_rate, arguments: see ClassCenters; there is no ``folder`` and
            no ``on_host``.
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


class PartialFC(TutorialCalls):
    """Partial FC that updates the centers of a step in its backward pass, or after it with ``optimizer.step()``.

    No gradient (L, E) exists, and all other centers and their states are unchanged. A step is `step`, or
    ``loss = layer(embeddings, labels); loss.backward()``; both use ``learning_rate``. A factor of the loss, such as a
    loss scale, acts on the gradient of the embeddings, not on an update in the backward pass. With
    ``update_in_backward=False`` it also acts on the gradient of the centers, which ``optimizer`` has.

    Args:
        margin_softmax: as ``margin_loss`` of ClassCenters.
        num_classes, sample_rate, embedding_size, arguments: see ClassCenters.
        rank, world_size: of this process; None takes them from the process group, which they must equal.
        local_rank: of this process on its host, which is its GPU if there are several; None takes it from the launcher.
        batch_size: accepted; a batch may have any size.
        resume: reads the files of `save_params`.
        prefix: folder of the files.
        momentum, weight_decay, momentum_convention: of an optimizer that is given by name.
        optimizer: of the centers; an object, or a name for optimizer_named.
        device: see ClassCenters; None is the GPU of this rank, see gpu_of_rank, or the CPU.

    Attributes:
        weight_mom: (L, E) float32, with SGD, a sum of gradients as in torch.optim.SGD, or of steps. Other optimizers
            have the attributes that their ``states`` name.

    Raises:
        OSError: ``resume``: a file is missing or cannot be read.
        ValueError: rank and world_size are not those of the process group, a file holds other classes, or there is no
            such optimizer.
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
        momentum: float = 0.9,
        weight_decay: float = 5e-4,
        momentum_convention: str = "gradients",
        optimizer: RowOptimizer | str = "sgd",
        device: torch.device | str | None = None,
        **arguments,
    ):
        local_rank = rank_info(os.environ).local_rank if local_rank is None else local_rank
        if isinstance(optimizer, str):
            of_sgd = {"momentum": momentum, "momentum_convention": momentum_convention}
            optimizer = optimizer_named(optimizer, weight_decay, **of_sgd)
        super().__init__(
            margin_softmax,
            embedding_size,
            num_classes,
            sample_rate,
            optimizer=optimizer,
            device=device or _device_of_rank(local_rank),
            **arguments,
        )
        self._require_rank(rank, world_size)
        if resume:
            self.load_params()

    def _require_rank(self, rank: int | None, world_size: int | None) -> None:
        own = (self.collectives.rank, self.collectives.size)
        if (own[0] if rank is None else rank, own[1] if world_size is None else world_size) != own:
            raise ValueError(
                f"this process is rank {own[0]} of {own[1]} in the process group, not rank {rank} of {world_size}"
            )


def _device_of_rank(local_rank: int) -> torch.device:
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return torch.device("cuda", gpu_of_rank(local_rank, gpus)) if gpus else torch.device("cpu")
