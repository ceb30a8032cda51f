"""Builds the objects of a training from its complete settings, see partial_fc.settings."""

import logging
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import nn

from partial_fc.checkpoint import ModelFormat
from partial_fc.checkpoint.model_format import TORCH
from partial_fc.data.batch import Batch, Inputs
from partial_fc.data.head_data import HeadData
from partial_fc.data.training_data import Batches, DataLoader, DummyData
from partial_fc.distributed.consistency import arrays_digest
from partial_fc.distributed.errors import errors_of_head
from partial_fc.layer.center_states import center_bytes
from partial_fc.layer.margins import COMBINED
from partial_fc.settings.checks import check_batch_norms
from partial_fc.training.class_weights import sampling_weights
from partial_fc.training.heads import Head
from partial_fc.training.next_commands import PARTIAL_FC
from partial_fc.training.saving import AVERAGE, CenterSave, SaveCallback
from partial_fc.training.schedule import Epochs, RateFactor, learning_rates, lists_by_epoch, margin_options_by_update
from partial_fc.training.schedules import check_by_epoch, value_in_epoch
from partial_fc.training.tasks.task import Task
from partial_fc.training.trackers.tensorboard import drawn_ending
from partial_fc.utils.options import UNIT_COPIES, options_of, other_options
from partial_fc.utils.user_code import errors_of

from .arcface_checkpoint import read_checkpoint
from .backbones import NETWORKS, Backbone, get_model
from .backbones.recompute import recompute_blocks
from .batches import dummy_tensors, tensor_data
from .center_files import center_file
from .code_cache import use_private_cache
from .collectives import default_collectives, uses_gpu
from .data_parallel import data_parallel
from .device_defaults import gpu_facts, gpu_of_rank, has_tf32, require_enough_gpus
from .device_report import device_line, precision_line
from .engine import LayerHead, TorchEngine
from .layer.margins import Margin, as_margin, find_margin, margin_named
from .layer.objectives import find_objective
from .layer.optimizers import optimizer_named
from .memory_format import takes_channels_last, use_channels_last
from .onnx_export import OnnxExport
from .optimizers import BackboneOptimizer, build_optimizer, freeze, frozen_modules, optimizer_class, read_factors
from .partial_fc import PartialFC
from .pretrained import config_content
from .published_files import read_pretrained
from .saving import save_model
from .teacher import Distillation, Teacher, take_teacher_centers

HEADS = "heads"  # folder in the output folder with the class centers of the heads after the first


def margin_builder(settings) -> Callable[..., Any]:
    """Returns a function that builds the margin of the settings, any object that as_margin accepts.

    The function takes the options that change during the training. It raises ValueError if ``margin`` does not exist,
    or does not take ``margin_options``.
    """
    options = other_options(settings, "margin_options", find_margin(settings.margin))
    if settings.margin == "combined":
        options = {**COMBINED, **options}
    return lambda **changing: margin_named(settings.margin, settings.loss_s, {**options, **changing})


def margins_by_update(settings, epochs: Epochs) -> Callable[[int], Margin] | None:
    """Returns a function from the number of an update, from 1, to its margin; None if the margin does not change."""
    if not lists_by_epoch(settings):
        return None
    build, options = margin_builder(settings), margin_options_by_update(settings, epochs)
    build_once = lru_cache(maxsize=1)(lambda **changing: as_margin(build(**changing)))  # for equal options in a row
    return lambda num_update: build_once(**options(num_update))


def check_margin(settings) -> None:
    """Raises ValueError as `margin_builder`, also for the options of later epochs."""
    updates = 10**6  # of an epoch
    build, options = margin_builder(settings), margin_options_by_update(settings, Epochs(updates, 1))
    for epoch in sorted({1}.union(*(check_by_epoch(*each) for each in lists_by_epoch(settings).items()))):
        for num_update in ((epoch - 1) * updates or 1, (epoch - 1) * updates + 1):  # before and after a change
            build(**options(num_update))


def optimizer_of(settings) -> Callable[..., BackboneOptimizer]:
    """Returns build_optimizer with the arguments of the settings; call it with a backbone."""
    return partial(
        build_optimizer,
        name=settings.optimizer,
        weight_decay=settings.wd,
        decay_on=options_of(settings, "optimizer_options").decay_on,
        options=other_options(settings, "optimizer_options", optimizer_class(settings.optimizer)),
        momentum=settings.momentum,
    )


def check_optimizer(settings) -> None:
    """Raises ValueError if ``optimizer`` does not exist, does not take ``optimizer_options``, or fails in an update."""
    optimizer = optimizer_of(settings)(nn.Linear(1, 1))
    if not optimizer.optimizer.defaults.get("capturable"):  # these optimizers work on GPUs only
        with errors_of(f"optimizer is {settings.optimizer!r}, which fails in an update"):
            optimizer.create_states()
            optimizer.states()


class TorchFramework:
    """PyTorch, see partial_fc.training.framework.Framework.

    Args:
        backbone: a module that maps the inputs of the task (normalized, if they are pixels) to embeddings (B, E), with
            the same weights on every rank; None builds the network of the settings.
        backend: "nccl", "gloo" or "" to choose, see uses_gpu.

    Raises:
        ValueError: ``backend`` needs GPUs, and there are none or too few, see require_enough_gpus.
    """

    collectives = default_collectives
    read_pretrained = staticmethod(read_pretrained)
    read_checkpoint = staticmethod(read_checkpoint)
    source_folders = (os.path.dirname(__file__),)
    files = {
        "backbone for PyTorch, a state_dict": "backbone.pth",
        "backbone for partial_fc.from_pretrained": "model.safetensors, config.json",
        "class centers of each rank": "rank_<rank>_softmax_weight.pt, ..._<state>.pt",
    }

    def __init__(self, backbone: nn.Module | None = None, backend: str = ""):
        self.backbone, self._uses_gpu = backbone, uses_gpu(backend)
        if self._uses_gpu:  # before the ranks connect, because each rank chooses its GPU first
            require_enough_gpus(self.collectives.local_size, torch.cuda.device_count())

    @property
    def script(self) -> str:
        """What trains on this host: pytorch/run.sh of a clone, or partial-fc; "" for the user's own backbone."""
        path = os.path.join(os.path.dirname(os.path.dirname(__file__)), "run.sh")
        return "" if self.backbone is not None else path if os.path.exists(path) else PARTIAL_FC

    @property
    def device(self) -> torch.device:
        """The GPU of this rank, or the CPU."""
        if not self._uses_gpu:
            return torch.device("cpu")
        return torch.device("cuda", gpu_of_rank(self.collectives.local_rank, torch.cuda.device_count()))

    @property
    def model_format(self) -> ModelFormat:
        """The conventions of a new training."""
        backbone = self.backbone
        if not isinstance(backbone, Backbone):
            return TORCH
        return TORCH._replace(eps=backbone.eps, pixel_scale=backbone.pixel_scale)

    def versions(self) -> dict[str, str]:
        """Returns the version of PyTorch."""
        return {"torch": torch.__version__}

    def open_writer(self, folder: str, first_update: int):
        """Opens a writer of TensorBoard events."""
        from torch.utils.tensorboard import SummaryWriter  # only rank 0 needs it

        return SummaryWriter(folder, purge_step=first_update, filename_suffix=drawn_ending())

    def require_device(self, settings) -> None:
        """Raises ValueError if this rank cannot compute in the precision of the settings, or lacks a compiler."""
        dtype = options_of(settings, "layer_options").dtype
        if dtype == "tf32" and not has_tf32(gpu_facts(self.device)):
            raise ValueError(
                "layer_options=dtype=tf32 needs a GPU of compute capability 8.0 or newer: set layer_options=dtype=auto"
            )
        if options_of(settings, "network_options").compile:
            if not any(map(shutil.which, (os.environ.get("CXX", ""), "g++", "gcc", "clang"))):
                raise ValueError(
                    "network_options=compile=True needs a compiler: install g++ or gcc, or set "
                    "network_options=compile=False"
                )
            use_private_cache(os.environ)
        if self._uses_gpu:
            return
        if settings.gradient_dtype != "float32":
            raise ValueError(f"gradient_dtype={settings.gradient_dtype} needs GPUs: set gradient_dtype=float32")
        if settings.fp16:
            raise ValueError("fp16=True needs GPUs: set fp16=False, or bf16=True for bfloat16")
        if dtype == "float16":
            raise ValueError("layer_options=dtype=float16 needs GPUs: set layer_options=dtype=bfloat16")

    def free_gpu_bytes(self) -> int | None:
        """Returns the free memory of this rank's GPU in bytes; None without a GPU."""
        return torch.cuda.mem_get_info(self.device)[0] if self.device.type == "cuda" else None

    def class_bytes(self, settings) -> int:
        """Returns the bytes of a class in the bank, see Framework.class_bytes."""
        layer = options_of(settings, "layer_options")
        states = optimizer_named(settings.center_optimizer, settings.wd).states
        row_bytes = center_bytes(settings.embedding_size, states, layer.center_dtype)
        return layer.sub_centers * sum(row_bytes.values())

    def check_task(self, task: Task) -> None:
        """Accepts every task."""

    def load_data(self, batches: Batches, threads: int) -> DataLoader[Batch]:
        """Returns the training data of this rank, see Framework.load_data."""
        return tensor_data(batches, threads, pinned=self.device.type == "cuda")

    def dummy_data(
        self, inputs: Inputs, num_classes: int, seed: int, label_shape: tuple[int, ...] = ()
    ) -> DummyData[Batch]:
        """Returns dummy batches, see Framework.dummy_data."""
        pinned = self.device.type == "cuda"
        return dummy_tensors(inputs, num_classes, seed, self.collectives.rank, pinned, label_shape=label_shape)

    def build_engine(
        self,
        settings,
        task: Task,
        rate_factor: RateFactor,
        epochs: Epochs,
        data,
        folder: str,
        model_format: ModelFormat,
        heads: Sequence[Head] = (),
    ) -> TorchEngine:
        """Builds the engine, see Framework.build_engine; its centers are saved to ``folder``.

        Collectives: with a teacher, all-gather ``status.teacher``; all-gathers ``status.memory_bank``, ``agree`` and
        ``status.module``; the broadcasts of DistributedDataParallel; all-gather ``status.optimizer``.
        """
        heads = heads or [Head("", settings)]
        collectives = self.collectives
        logging.info("%s", device_line(self.device))
        logging.info("%s", precision_line(settings, self.device, collectives.size))
        distillation, facts = None, dict[str, str]()

        def open_teacher() -> Teacher:
            teacher = Teacher(settings.teacher, task.pixels, self.device)
            teacher.check(data.sample(2), settings.embedding_size)
            return teacher

        if settings.teacher:
            teacher = collectives.run_on_all_ranks("teacher", open_teacher)
            facts["content of teacher"] = teacher.digest
            distillation = Distillation(teacher, settings.teacher_weight, collectives)

        def build_heads() -> list[LayerHead]:
            built = list[LayerHead]()
            sets = list(data.sets.values()) if isinstance(data, HeadData) else [data]
            for head, of_head in zip(heads, sets):
                path = os.path.join(folder, HEADS, head.name) if built else folder
                with errors_of_head(head.name):
                    margins = margins_by_update(head.settings, epochs)
                    weights = sampling_weights(head.settings, of_head)
                    if weights is not None:
                        facts[f"weights of sampling {head.name}".strip()] = arrays_digest({"": weights})
                    layer = self.build_layer(head.settings, path, model_format, weights)
                    if settings.teacher_centers != "none":
                        take_teacher_centers(settings.teacher, layer)
                built.append(LayerHead(head.name, layer, head.weight * settings.softmax_weight, margins))
            return built

        layer_heads = collectives.run_on_all_ranks("memory_bank", build_heads)
        collectives.assert_same_on_all_ranks(facts)  # each host reads its own disk
        layer = layer_heads[0].layer
        backbone = collectives.run_on_all_ranks("module", lambda: self.build_backbone(settings, task, model_format))
        model = data_parallel(backbone, layer, getattr(torch, settings.gradient_dtype))
        convention, factors = model_format.momentum_convention, read_factors(settings.part_rates)
        averaged = settings.average_checkpoints or None
        on_gpu, (backbone_lr, _) = self.device.type == "cuda", learning_rates(settings, collectives.size)
        center_rates = [learning_rates(head.settings, collectives.size)[1] for head in heads]

        def rates(num_update: int) -> tuple[float, ...]:
            factor = rate_factor(num_update)
            return tuple(rate * factor for rate in (backbone_lr, *center_rates))

        build = partial(
            TorchEngine,
            model,
            layer,
            rates,
            settings.network,
            optimizer=partial(optimizer_of(settings), fused=on_gpu, factors=factors, momentum_convention=convention),
            max_grad_norm=settings.max_grad_norm,
            gradient_acc=settings.gradient_acc,
            ema_decay=settings.ema_decay,
            last_ends=averaged and epochs.last_ends(averaged, settings.max_update),
            momentum_convention=convention,
            autocast=torch.float16 if settings.fp16 else torch.bfloat16 if settings.bf16 else None,
            pixels=task.pixels,
            compiled=options_of(settings, "network_options").compile,
            frozen=frozen_modules(backbone, factors),
            heads=layer_heads,
            distillation=distillation,
            facts=facts,
        )
        return collectives.run_on_all_ranks("optimizer", build)

    def build_layer(
        self, settings, folder: str, model_format: ModelFormat, weights: np.ndarray | None = None
    ) -> PartialFC:
        """Builds the layer of this rank, which saves its centers to ``folder``."""
        options = options_of(settings, "layer_options")
        return PartialFC(
            margin_softmax=margin_builder(settings)(**margin_options_by_update(settings, Epochs(1, 1))(1)),
            objective=settings.objective,
            objective_options=other_options(settings, "objective_options", find_objective(settings.objective)),
            num_classes=settings.num_classes,
            sample_rate=value_in_epoch(settings.sample_ratio, 0),
            sampling_correction=settings.sampling_correction,
            sampling_weights=weights,
            embedding_size=settings.embedding_size,
            prefix=folder,
            optimizer=settings.center_optimizer,
            momentum=settings.momentum,
            weight_decay=settings.wd,
            momentum_convention=model_format.momentum_convention,
            seed=settings.seed,
            collectives=self.collectives,
            sub_centers=options.sub_centers,
            tile_classes=options.tile_classes,
            logits_cache_mb=None if options.logits_cache_mb < 0 else options.logits_cache_mb,
            layer_dtype=options.dtype,
            layer_kernel=options.kernel,
            unit_copy=UNIT_COPIES[options.unit_copy],
            center_dtype=options.center_dtype,
            folder=settings.bank_folder,
            on_host=not settings.bank_on_gpu and self.device.type == "cuda",
            device=self.device,
        )

    def build_backbone(self, settings, task: Task, model_format: ModelFormat) -> nn.Module:
        """Returns the user's backbone, or builds the network of the settings, on the device of this rank.

        Raises:
            ValueError: ``batch_size`` is 1, but the network has batch norms, which need a variance; or the backbone has
                no blocks for ``activation_checkpointing``, or lacks a part of ``part_rates``.
        """
        torch.backends.cudnn.benchmark = True  # all batches of a training have the same shape
        torch.manual_seed(settings.seed)  # gives every rank the same weights
        options = options_of(settings, "network_options")
        self._network_sizes = {"image_size": None, **task.network_sizes()}
        backbone = self.backbone or get_model(
            settings.network, dropout=options.dropout, num_features=settings.embedding_size, **self._network_sizes
        )
        if any(isinstance(module, nn.BatchNorm1d) for module in backbone.modules()):
            check_batch_norms(settings)
        if isinstance(backbone, Backbone):
            backbone.eps, backbone.pixel_scale = model_format.eps, model_format.pixel_scale
        freeze(backbone, read_factors(settings.part_rates))
        if options.activation_checkpointing:
            recompute_blocks(backbone)
        backbone.to(self.device)
        image_size = task.network_sizes().get("image_size") if task.pixels else None
        is_known = self.backbone is None and settings.network in NETWORKS
        if is_known or image_size and takes_channels_last(backbone, image_size):
            use_channels_last(backbone)
        return backbone

    def build_savers(
        self, settings, engine: TorchEngine, folder: str, examples: Inputs, metadata: Callable[..., Mapping[str, str]]
    ) -> tuple[SaveCallback, ...]:
        """Builds the callbacks that save the backbone and the class centers, see Framework.build_savers.

        Collectives: all-gather ``status.export``, now and after the first update.
        """
        exports = {"backbone": OnnxExport(engine.backbone, examples, metadata, engine.pixels)}
        if engine.averaged:
            average_metadata, in_backbone = partial(metadata, averaged=True), engine.averaged.in_backbone
            exports[AVERAGE] = OnnxExport(engine.backbone, examples, average_metadata, engine.pixels, in_backbone)
        validate = None
        if exports["backbone"].fits:
            # Repeated after the first update: a forward pass in training may set what the exporter rejects.
            validate = partial(engine.collectives.on_rank_zero, "export", exports["backbone"].validate_export)
            validate()
        elif self.collectives.rank == 0:
            logging.warning("no ONNX files are written: the weights of %s exceed their 2 GiB", settings.network)
        network = settings.network if self.backbone is None else None
        config = partial(config_content, network, engine.backbone, settings.embedding_size, self._network_sizes)
        model_save = SaveCallback(settings.save_every, partial(save_model, engine, folder, exports, config), validate)
        saves: list[SaveCallback] = [model_save]
        for head in engine.heads:
            path = folder if head.layer is engine.layer else os.path.join(folder, HEADS, head.name)
            names, save = [center_file(field) for field in head.layer.widths], head.layer.save_params
            saves.append(CenterSave(engine.collectives, settings.save_every, save, path, names))
        return tuple(saves)
