"""Builds the objects of a training from its settings. Everything below takes plain arguments.

``settings`` are those of default.py, completed by its generate_config.

Shapes: B local batch, R ranks, C classes, L classes of one rank, E embedding.
"""

from __future__ import annotations

import os

import mxnet as mx

from partial_fc.distributed.env import decode_threads
from partial_fc.layer.sharding import num_sampled, shard_of
from partial_fc.training.learning_rate import scaled_rate
from partial_fc.utils import memory
from partial_fc.utils.text import plural

from .image_iter import DummyIter, FaceImageIter
from .memory_bank import MemoryBank
from .memory_module import SampleDistributeModule
from .memory_scheduler import get_scheduler
from .memory_softmax import MarginLoss
from .ops.device import rank_context
from .optimizer import MemoryBankSGDOptimizer
from .symbol import get_symbol

# Dummy batches of an epoch: their labels spread over the classes.
DUMMY_BATCHES = 100


def record_path(settings) -> str:
    """Returns the path of the ``train.rec`` to train on."""
    return settings.rec or os.path.join(settings.data_root, settings.data_name, "train.rec")


def build_data(settings, rank: int, size: int, local_size: int):
    """Builds the training iterator of one rank: FaceImageIter, or DummyIter if ``debug`` is set.

    Args:
        settings: See above.
        rank: Rank of this process.
        size: R.
        local_size: Number of ranks on this host, which share its cores.

    Raises:
        OSError: The set is missing or cannot be read.
        ValueError: The set is damaged or does not fit the settings.
    """
    if settings.debug:
        return build_dummies(settings, rank, size)
    data = FaceImageIter(
        settings.batch_size,
        _shape(settings),
        record_path(settings),
        shuffle=settings.shuffle,
        rand_mirror=settings.rand_mirror,
        cutoff=settings.cutoff,
        color_jittering=settings.color_jittering,
        images_filter=settings.images_filter,
        context=rank,
        context_num=size,
        seed=settings.seed,
        jpeg_compression=settings.jpeg_compression,
        skip_bad_images=settings.skip_bad_images,
        threads=settings.decode_threads or decode_threads(local_size),
    )
    data.check_labels(settings.num_classes)
    return data


def build_dummies(settings, rank: int, size: int) -> DummyIter:
    """Builds an iterator over dummy batches of the same shapes as the training data."""
    return DummyIter(
        settings.batch_size, _shape(settings), DUMMY_BATCHES, settings.num_classes, settings.seed, rank, size
    )


def _shape(settings) -> tuple[int, int, int]:
    return 3, settings.image_size, settings.image_size


def validation_sets(settings) -> dict[str, str]:
    """Returns the paths of the ``.bin`` files by name, existing or not; none in debug mode."""
    if settings.debug:
        return {}
    folder = os.path.dirname(record_path(settings))
    return {name: os.path.join(folder, f"{name}.bin") for name in settings.val_targets}


def build_bank(settings, rank: int, size: int, local_rank: int, folder: str) -> MemoryBank:
    """Builds the memory bank of one rank, which saves its centers in ``folder``."""
    shard = shard_of(settings.num_classes, rank, size)
    return MemoryBank(
        num_sample=num_sampled(shard.size, settings.sample_ratio),
        num_local=shard.size,
        rank=rank,
        local_rank=local_rank,
        embedding_size=settings.embedding_size,
        prefix=folder,
        gpu=settings.bank_on_gpu,
        folder=settings.bank_folder,
        class_start=shard.start,
        seed=settings.seed,
    )


def require_device(settings, local_rank: int) -> None:
    """Checks, before anything is read or written, that the device of this rank can run the training.

    Raises:
        ValueError: This rank has no device, or fp16 is set and the device has no float16 convolutions.
    """
    context = rank_context(local_rank)
    if settings.fp16 and context.device_type == "cpu":
        raise ValueError("MXNet has no float16 convolutions on the CPU: set fp16=False, or train on a host with a GPU")


def require_memory(settings, rank: int, size: int, local_rank: int, local_size: int) -> None:
    """Checks that class centers and momentum fit in memory, before any rank of this host allocates them.

    Raises:
        ValueError: They do not fit.
    """
    if settings.bank_folder:
        return  # MemoryBank checks the space on the disk
    needed = 8 * shard_of(settings.num_classes, rank, size).size * settings.embedding_size
    if settings.bank_on_gpu and rank_context(local_rank).device_type == "gpu":
        free, _ = mx.context.gpu_memory_info(local_rank)
        memory.require_memory(needed, free, f"on GPU {local_rank}", "start more ranks, or set bank_on_gpu=False")
        return
    hint = "train on more hosts, or store them in files: bank_folder=<folder on a fast disk>"
    place = f"for the {plural(local_size, 'rank')} of this host"
    memory.require_memory(local_size * needed, memory.free_memory(), place, hint)


def build_symbol(settings, fp16: bool):
    """Builds the backbone. Models are saved with fp16=False, which every device can run."""
    return get_symbol(
        settings.network,
        settings.embedding_size,
        net_se=settings.net_se,
        net_act=settings.net_act or None,
        bn_mom=settings.bn_mom,
        net_output=settings.net_output or None,
        fp16=fp16,
    )


def learning_rates(settings, size: int) -> tuple[float, float]:
    """Returns the initial learning rates of backbone and class centers; both scale with the global batch unless set."""
    scaled = scaled_rate(settings.lr, settings.batch_size * size)
    return settings.backbone_lr or scaled, settings.memory_bank_lr or scaled


def build_module(settings, bank: MemoryBank, size: int) -> tuple[SampleDistributeModule, dict]:
    """Returns the module, and the ``optimizer_params`` of its backbone."""
    backbone_lr, memory_bank_lr = learning_rates(settings, size)
    backbone_scheduler, bank_scheduler = get_scheduler(
        settings.lr_steps, backbone_lr, memory_bank_lr, settings.warmup_steps
    )
    symbol = build_symbol(settings, settings.fp16)
    memory_optimizer = MemoryBankSGDOptimizer(
        bank_scheduler, 1.0 / (settings.batch_size * size), settings.momentum, settings.wd
    )
    loss = MarginLoss(settings.margins, settings.loss_s, settings.embedding_size)
    optimizer_params = {
        "learning_rate": backbone_lr,
        "lr_scheduler": backbone_scheduler,
        "momentum": settings.momentum,
        "wd": settings.wd,
        "rescale_grad": 1.0 / settings.batch_size,
    }
    module = SampleDistributeModule(
        symbol,
        loss,
        bank,
        memory_optimizer,
        tile_classes=settings.tile_classes,
        logits_cache_mb=settings.logits_cache_mb,
        max_grad_norm=settings.max_grad_norm,
    )
    return module, optimizer_params
