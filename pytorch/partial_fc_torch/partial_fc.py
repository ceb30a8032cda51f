"""The classification layer as modules: PartialFC updates its centers itself, PartialFC_V2 leaves that to an optimizer.

Shapes: B local batch, R ranks, C classes, L classes of this rank, S sampled classes of this rank, E embedding.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

from partial_fc.distributed.collectives import Collectives
from partial_fc.distributed.env import rank_info

from .center_files import center_file, load_rows, save_rows
from .device_defaults import gpu_of_rank
from .layer.center_optimizer import CenterOptimizer
from .layer.margins import Margin
from .layer.module import ClassCenters
from .layer.objectives import Objective
from .layer.optimizers import SGD, RowOptimizer, optimizer_named
from .layer.stores import CenterStore

MarginLike: TypeAlias = Margin | torch.nn.Module | Callable[..., torch.Tensor]
ObjectiveLike: TypeAlias = str | Objective | Callable[..., torch.Tensor]


class PartialFC(ClassCenters):
    """Partial FC that updates the centers of a step in its backward pass, or later with ``optimizer.step()``.

    Every process of the default process group builds the layer with the same arguments, and has its part of the
    classes; wrap the backbone alone in DistributedDataParallel, or see `exclude_from_ddp`. A step is ``loss =
    layer(embeddings, labels); loss.backward()``, or a call of `step`. Centers outside of the step, and their states, do
    not change, and no gradient (L, E) is allocated. A factor of the loss, such as a loss scale, multiplies the gradient
    of the embeddings, but not an update in the backward pass. Other optimizers do not move the centers: ``weight``
    never has a gradient.

    Args:
        margin: a Margin such as ArcFace(), or another object that as_margin accepts.
        num_classes: C, of all ranks together.
        embedding_size: E.
        sample_rate: fraction of class centers sampled per step, at most 1. With 0, only the centers of the batch are
            used; their number depends on the labels, so the host waits for the GPU in the middle of a step.
        lr: learning rate of the centers; `learning_rate` and schedulers of ``optimizer`` change it later.
        optimizer: updates the centers; "sgd", "adamw", "adagrad", or another object or name that optimizer_named
            accepts.
        momentum, weight_decay, momentum_convention: arguments of an ``optimizer`` given by name, see SGD.
        update_in_backward: whether the backward pass updates the centers. If False, backward passes accumulate the
            gradient of the sampled rows, and ``layer.optimizer.step()`` applies it, see CenterOptimizer. A factor of
            the loss then multiplies this gradient, too.
        objective: the loss as a function of negatives and labels: "softmax", "softmax_shared", "mlcd", "circle",
            "sphereface2", "uniface", "bce", or another object that as_objective accepts.
        objective_options: arguments of an objective given by name.
        sub_centers: K, at most 255. The cosine of a class is the largest of its sub-centers, which alone gets a
            gradient (Deng et al., Sub-center ArcFace, ECCV 2020).
        sampling_correction: weights each sampled negative by 1 / its probability, so that the sum over the negatives
            is unbiased, see log_weights in partial_fc/layer/sampling.py.
        sampling_weights: (C,) positive numbers, in proportion to which classes are drawn as negatives, such as numbers
            of items; None draws uniformly. See WeightedSampler: the size of a sample varies, positives are added to it,
            and the host waits for the labels.
        seed: seeds the initial centers and the sampler; None draws it from rank 0's PyTorch generator, which
            torch.manual_seed seeds (broadcast ``seed``).
        tile_classes: number of classes whose logits are computed at a time; 0 selects a size that suits the device.
        logits_cache_mb: MiB of logits that a step may keep between its passes; None chooses, see LogitsCache.
        layer_dtype: type of the operands of the layer's products, as a dtype or its name: float32, "tf32" (float32 on
            CPUs), bfloat16, or float16, which is fast on GPUs only. "auto" is float16 on GPUs that support
            TF32, otherwise float32. Sums, statistics and targets are float32; layer/products.py bounds the error.
        layer_kernel: "torch" uses PyTorch's operators; "mm" uses Triton kernels between PyTorch's matrix products, and
            "triton" kernels that compute the cosines, too, if they support the layer and agree with PyTorch's operators
            in the first step; "auto" measures all three there on a GPU, and uses the fastest. The log has the choice.
        unit_copy: whether the kernels keep a copy of the unit rows of all centers in 16 bits, which saves them half of
            the reading; None keeps one if the GPU has the memory. Changes of ``weight`` through ``weight.data``, which
            PyTorch does not see, do not reach the copy.
        center_dtype: type in which centers and states of E numbers are stored, as a dtype or its name: float32, or
            bfloat16, which takes half the memory. The layer reads bfloat16 rows into float32, and an update rounds them
            stochastically, see layer/rounding.py.
        folder: keeps centers and states in files in this folder, see FileStore; for banks that do not fit into memory,
            with a small sample_rate.
        on_host: keeps centers and states in host memory. From there, and from files, a step on a GPU copies the rows
            of its sample, see HostStore.
        store: function (number of rows, device of the arrays) -> CenterStore for centers and states; unused if
            ``folder`` is set.
        device: where the layer computes, and where it keeps the centers without ``folder`` and ``on_host``; None
            selects the GPU of this rank, see gpu_of_rank, or the CPU.
        collectives: this process's collectives; None uses the default process group.
        margin_softmax: the tutorial's name of ``margin``.
        rank, world_size: must match the process group, whose values None selects.
        local_rank: rank of this process on its host, which selects its GPU; None takes it from the launcher.
        batch_size: accepted and ignored; a batch may have any size.
        resume: whether to read the files of `save_params`.
        prefix: folder of these files.

    Attributes:
        weight: (L*K, E) parameter in ``center_dtype`` on the device, the host or in a file; the K rows of a class are
            adjacent. Initially normal with standard deviation 0.01; depends on the seed and the class, not on R.
        weight_mom: (L*K, E) in ``center_dtype``, only with SGD: a sum of gradients, as in torch.optim.SGD, or of steps.
            Other optimizers have the attributes that their ``states`` name.
        optimizer: CenterOptimizer, for learning rate schedulers and explicit steps.
        row_optimizer: the object that updates the centers.
        class_start, num_local: first class and number L of the classes of this rank.
        margin, objective, sub_centers, update_in_backward: as above.
        sample_rate: as above; may be set between two steps.
        requires_positives: whether every label's center must be among the centers of the step, see `sample`.
        num_update: number of updates done, for error messages; a resumed training sets it.

    Raises:
        TypeError: ``margin`` is not a margin.
        ValueError: An argument is out of range, rank and world_size do not match the process group, the launcher
            started several processes without a process group, or a file has other classes.
        OSError: ``folder`` is not writable, or has too little space; or, with ``resume``, a file cannot be read.
    """

    optimizer: CenterOptimizer

    def __init__(
        self,
        margin: MarginLike | None = None,
        *,
        num_classes: int,
        embedding_size: int = 512,
        sample_rate: float = 1.0,
        lr: float | None = None,
        optimizer: RowOptimizer | str = "sgd",
        momentum: float = 0.9,
        weight_decay: float = 5e-4,
        momentum_convention: str = "gradients",
        update_in_backward: bool = True,
        objective: ObjectiveLike = "softmax",
        objective_options: Mapping[str, Any] | None = None,
        sub_centers: int = 1,
        sampling_correction: bool = False,
        sampling_weights: np.ndarray | torch.Tensor | None = None,
        seed: int | None = 0,
        tile_classes: int = 0,
        logits_cache_mb: int | None = None,
        layer_dtype: torch.dtype | str = "auto",
        layer_kernel: str = "auto",
        unit_copy: bool | None = None,
        center_dtype: torch.dtype | str = "float32",
        folder: str | None = None,
        on_host: bool = False,
        store: Callable[[int, torch.device], CenterStore] = CenterStore,
        device: torch.device | str | None = None,
        collectives: Collectives | None = None,
        margin_softmax: MarginLike | None = None,
        rank: int | None = None,
        local_rank: int | None = None,
        world_size: int | None = None,
        batch_size: int | None = None,
        resume: bool = False,
        prefix: str = "./",
    ):
        if isinstance(optimizer, str):
            sgd_options = {"momentum": momentum, "momentum_convention": momentum_convention}
            optimizer = optimizer_named(optimizer, weight_decay, **sgd_options)
        if device is None:
            gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
            local_rank = rank_info(os.environ).local_rank if local_rank is None else local_rank
            device = torch.device("cuda", gpu_of_rank(local_rank, gpus)) if gpus else torch.device("cpu")
        super().__init__(
            _one_of(margin=margin, margin_softmax=margin_softmax),
            embedding_size,
            num_classes,
            sample_rate,
            optimizer=optimizer,
            update_in_backward=update_in_backward,
            objective=objective,
            objective_options=objective_options,
            sub_centers=sub_centers,
            sampling_correction=sampling_correction,
            sampling_weights=sampling_weights,
            seed=seed,
            tile_classes=tile_classes,
            logits_cache_mb=logits_cache_mb,
            layer_dtype=layer_dtype,
            layer_kernel=layer_kernel,
            unit_copy=unit_copy,
            center_dtype=center_dtype,
            folder=folder,
            on_host=on_host,
            store=store,
            device=device,
            collectives=collectives,
        )
        self._prefix = prefix
        actual = self.collectives.rank, self.collectives.size
        if (actual[0] if rank is None else rank, actual[1] if world_size is None else world_size) != actual:
            raise ValueError(
                f"this process is rank {actual[0]} of {actual[1]} in the process group, not rank {rank} of {world_size}"
            )
        if lr is not None:
            self.learning_rate = lr
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


class PartialFC_V2(ClassCenters):
    """Partial FC for any optimizer of PyTorch: ``weight`` is a parameter with a dense gradient.

    Centers that are not in the step have a gradient of zero, but an optimizer with momentum or weight decay moves them
    nevertheless; PartialFC leaves them unchanged. Do not wrap the layer in DistributedDataParallel.

    Args:
        margin, embedding_size, num_classes, sample_rate: see PartialFC.
        fp16: accepted and ignored; the layer computes in the type of ``weight``, float32 or float64, even under
            autocast.
        objective, objective_options, sub_centers, sampling_correction, sampling_weights: see PartialFC.
        seed, store, collectives: see PartialFC.
        tile_classes, logits_cache_mb, layer_dtype, layer_kernel, unit_copy: see PartialFC.
        device: of the centers; None is PyTorch's default.
        margin_loss: arcface_torch's name of ``margin``.
    """

    def __init__(
        self,
        margin: MarginLike | None = None,
        embedding_size: int = 512,
        num_classes: int = 0,
        sample_rate: float = 1.0,
        fp16: bool = False,
        *,
        objective: ObjectiveLike = "softmax",
        objective_options: Mapping[str, Any] | None = None,
        sub_centers: int = 1,
        sampling_correction: bool = False,
        sampling_weights: np.ndarray | torch.Tensor | None = None,
        seed: int | None = 0,
        tile_classes: int = 0,
        logits_cache_mb: int | None = None,
        layer_dtype: torch.dtype | str = "auto",
        layer_kernel: str = "auto",
        unit_copy: bool | None = None,
        store: Callable[[int, torch.device], CenterStore] = CenterStore,
        device: torch.device | str | None = None,
        collectives: Collectives | None = None,
        margin_loss: MarginLike | None = None,
    ):
        super().__init__(
            _one_of(margin=margin, margin_loss=margin_loss),
            embedding_size,
            num_classes,
            sample_rate,
            objective=objective,
            objective_options=objective_options,
            sub_centers=sub_centers,
            sampling_correction=sampling_correction,
            sampling_weights=sampling_weights,
            seed=seed,
            tile_classes=tile_classes,
            logits_cache_mb=logits_cache_mb,
            layer_dtype=layer_dtype,
            layer_kernel=layer_kernel,
            unit_copy=unit_copy,
            store=store,
            device=device,
            collectives=collectives,
        )


def _one_of(**names: Any) -> Any:
    """Returns the only argument that is given under one of two names."""
    found = [value for value in names.values() if value is not None]
    if len(found) != 1:
        raise TypeError(f"give one of the arguments {' and '.join(names)}, not {len(found)}")
    return found[0]


def exclude_from_ddp(model: torch.nn.Module) -> None:
    """Makes DistributedDataParallel leave out the layers of a model: every rank has other centers.

    Call it before the model is wrapped, for Lightning's strategy "ddp" in ``setup`` of the LightningModule.

    Args:
        model: a module that contains PartialFC or PartialFC_V2.
    """
    layers = [(f"{name}.", layer) for name, layer in model.named_modules() if isinstance(layer, ClassCenters)]
    names = [
        f"{name}{part}" for name, layer in layers for part, _ in (*layer.named_parameters(), *layer.named_buffers())
    ]
    earlier = getattr(model, "_ddp_params_and_buffers_to_ignore", [])
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, [*earlier, *names])
