"""Builds the objects of a training from its settings; the objects themselves take plain arguments.

``settings`` are the complete settings of a training, see partial_fc.settings.

Shapes: B local batch, R ranks, C classes, L classes of one rank, E embedding.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace

import horovod
import mxnet as mx
import numpy as np

from partial_fc.checkpoint import ModelFormat
from partial_fc.checkpoint.model_format import MXNET
from partial_fc.data.batch import Inputs
from partial_fc.data.training_data import DUMMY_BATCHES, Batches
from partial_fc.layer.center_states import CENTER_STATES, center_bytes
from partial_fc.layer.margins import COMBINED
from partial_fc.layer.sharding import num_sampled, shard_of
from partial_fc.layer.tiling import LOGITS_CACHE_MB
from partial_fc.training.heads import Head
from partial_fc.training.schedule import Epochs, RateFactor, learning_rates
from partial_fc.training.schedules import value_in_epoch
from partial_fc.training.tasks.task import Task
from partial_fc.training.trackers.tensorboard import drawn_ending
from partial_fc.utils.config import parse_options
from partial_fc.utils.options import options_of

from .collectives import default_collectives
from .image_iter import DummyImages, ImageIter
from .memory_bank import MemoryBank
from .memory_module import SampleDistributeModule
from .memory_scheduler import RateScheduler
from .memory_softmax import MarginLoss
from .onnx_export import OnnxExport
from .ops.memory import rank_context
from .optimizer import MemoryBankSGDOptimizer
from .saving import CallBackCenterSave, CallBackModelSave
from .symbol import get_symbol


class MXNetFramework:
    """MXNet and Horovod, see partial_fc.training.framework.Framework for the methods; Horovod is initialized."""

    collectives = default_collectives
    model_format = MXNET
    source_folders = (os.path.dirname(__file__),)
    files = {
        "backbone for MXNet": "model-symbol.json, model-0000.params",
        "class centers of each rank": "<rank>_centers.param, ..._mom.param",
    }

    @property
    def script(self) -> str:
        path = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(__file__))), "run.sh")
        return path if os.path.exists(path) else ""

    def versions(self) -> dict[str, str]:
        return {"mxnet": mx.__version__, "horovod": horovod.__version__}

    def open_writer(self, folder: str, first_update: int):
        from mxboard import SummaryWriter  # only rank 0 needs it
        from mxboard.proto.event_pb2 import Event, SessionLog

        writer = SummaryWriter(logdir=folder, filename_suffix=drawn_ending(), verbose=False)
        # A START event hides the points of earlier runs from first_update on; TensorBoard honors it in version 2 files.
        for content in ({"file_version": "brain.Event:2"}, {"session_log": SessionLog(status=SessionLog.START)}):
            writer._file_writer.add_event(Event(wall_time=time.time(), step=first_update, **content))
        return writer

    def require_device(self, settings) -> None:
        context = rank_context(self.collectives.local_rank)
        if settings.fp16 and context.device_type == "cpu":
            raise ValueError(
                "MXNet has no float16 convolutions on the CPU: set fp16=False, or train on a host with a GPU"
            )

    def free_gpu_bytes(self) -> int | None:
        gpu = self.collectives.local_rank
        return mx.context.gpu_memory_info(gpu)[0] if rank_context(gpu).device_type == "gpu" else None

    def class_bytes(self, settings) -> int:
        """Returns the bytes of a class in the bank, see Framework.class_bytes."""
        return sum(center_bytes(settings.embedding_size, CENTER_STATES["sgd"]).values())

    def check_task(self, task: Task) -> None:
        if not task.pixels:
            raise ValueError(
                f"task {type(task).__name__} has inputs other than images, which this trainer does not support: train "
                "with bash pytorch/run.sh"
            )

    def load_data(self, batches: Batches, threads: int) -> ImageIter:
        data = ImageIter(batches, threads)
        if data.label_shape:
            data.close()
            raise ValueError(
                "the items of the set have several labels, which this trainer does not support: train with bash "
                "pytorch/run.sh"
            )
        return data

    def dummy_data(self, inputs: Inputs, num_classes: int, seed: int, label_shape: tuple[int, ...] = ()) -> DummyImages:
        return DummyImages(inputs, DUMMY_BATCHES, num_classes, seed, self.collectives.rank)

    def read_pretrained(self, path: str, with_classes: bool) -> None:
        """Returns None, because partial_fc reads MXNet's files without MXNet."""

    def read_checkpoint(self, path: str, gradient_acc: int) -> None:
        """Returns None, because this trainer reads no checkpoints of other programs."""

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
    ) -> SampleDistributeModule:
        """See Framework.build_engine.

        Collectives: all-gathers ``status.memory_bank`` and ``status.module``, the collectives of
        SampleDistributeModule.bind, all-gather ``status.init_params``, and the collectives of
        SampleDistributeModule.prepare_training.
        """
        run_on_all_ranks = self.collectives.run_on_all_ranks
        bank = run_on_all_ranks("memory_bank", lambda: self.build_bank(settings, folder))
        module, optimizer_params = run_on_all_ranks(
            "module", lambda: self.build_module(settings, rate_factor, bank, model_format)
        )
        mx.random.seed(settings.seed)  # the same weights on every rank
        module.bind(data.provide_data, for_training=True)
        initializer = mx.init.Xavier(rnd_type="gaussian", factor_type="out", magnitude=2)
        run_on_all_ranks("init_params", lambda: module.init_params(initializer))
        module.prepare_training(data, optimizer_params)
        return module

    def build_bank(self, settings, folder: str) -> MemoryBank:
        """Builds this rank's memory bank, which saves its centers in ``folder``."""
        job = self.collectives
        shard = shard_of(settings.num_classes, job.rank, job.size)
        return MemoryBank(
            num_sample=num_sampled(shard.size, value_in_epoch(settings.sample_ratio, 0)),
            num_local=shard.size,
            rank=job.rank,
            local_rank=job.local_rank,
            embedding_size=settings.embedding_size,
            prefix=folder,
            gpu=settings.bank_on_gpu,
            folder=settings.bank_folder,
            class_start=shard.start,
            seed=settings.seed,
            sampling_correction=settings.sampling_correction,
        )

    def build_module(
        self, settings, rate_factor: RateFactor, bank: MemoryBank, model_format: ModelFormat
    ) -> tuple[SampleDistributeModule, dict]:
        """Returns the module and the ``optimizer_params`` of its backbone."""
        size, layer = self.collectives.size, options_of(settings, "layer_options")
        margin = SimpleNamespace(**COMBINED | parse_options("margin_options", settings.margin_options))
        backbone_lr, memory_bank_lr = learning_rates(settings, size)
        memory_optimizer = MemoryBankSGDOptimizer(
            RateScheduler(memory_bank_lr, rate_factor),
            1.0 / (settings.batch_size * size),
            settings.momentum,
            settings.wd,
            model_format.momentum_convention,
        )
        optimizer_params = {
            "learning_rate": backbone_lr,
            "lr_scheduler": RateScheduler(backbone_lr, rate_factor),
            "momentum": settings.momentum,
            "wd": settings.wd,
            "rescale_grad": 1.0 / settings.batch_size,
        }
        module = SampleDistributeModule(
            build_symbol(settings, settings.fp16, model_format),
            MarginLoss(
                (margin.m1, margin.m2, margin.m3),
                settings.loss_s,
                settings.embedding_size,
                margin.interclass_filtering_threshold,
            ),
            bank,
            memory_optimizer,
            tile_classes=layer.tile_classes,
            logits_cache_mb=LOGITS_CACHE_MB if layer.logits_cache_mb < 0 else layer.logits_cache_mb,
            max_grad_norm=settings.max_grad_norm,
            network=settings.network,
            model_format=model_format,
        )
        return module, optimizer_params

    def build_savers(
        self,
        settings,
        engine: SampleDistributeModule,
        folder: str,
        examples: np.ndarray,
        metadata: Callable[[int], Mapping[str, str]],
    ) -> tuple[CallBackModelSave, CallBackCenterSave]:
        """See Framework.build_savers. Collectives: all-gather ``status.export``."""
        symbol, prefix = build_symbol(settings, False, engine.model_format), os.path.join(folder, "model")
        faces = examples.transpose(0, 2, 3, 1)
        export = OnnxExport(symbol, settings.image_size, engine.context, faces, metadata)
        model_save = CallBackModelSave(symbol, engine, prefix, engine.rank, settings.save_every, export)
        model_save.validate_export()
        with_momentum = engine.model_format.momentum_convention == "steps"
        return model_save, CallBackCenterSave(engine.memory_bank, settings.save_every, with_momentum)


def build_symbol(settings, fp16: bool, model_format: ModelFormat) -> mx.sym.Symbol:
    """Builds the backbone. Models are saved with fp16=False, which every device can run."""
    options = options_of(settings, "network_options")
    return get_symbol(
        settings.network,
        settings.embedding_size,
        net_se=options.se,
        net_act=options.act or None,
        bn_mom=options.bn_mom,
        net_output=options.output or None,
        fp16=fp16,
        eps=model_format.eps,
        pixel_scale=model_format.pixel_scale,
    )
