"""The PyTorch trainer's layer and engine for a case of the planner, used by planner_check.py."""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from partial_fc.data.batch import Batch, map_inputs
from partial_fc.training.tasks import build_task
from partial_fc_tools.planner import Case
from partial_fc_torch import CosFace, PartialFC, get_model
from partial_fc_torch.backbones.recompute import recompute_blocks
from partial_fc_torch.data_parallel import data_parallel
from partial_fc_torch.engine import TorchEngine
from partial_fc_torch.layer.margins import margin_named
from partial_fc_torch.optimizers import build_optimizer


def build_bank(case: Case) -> PartialFC:
    """Returns this rank's layer, on the CPU."""
    sizes = {"num_classes": case.classes, "sample_rate": case.ratio, "embedding_size": case.embedding}
    tiling = {"tile_classes": case.tile_classes, "logits_cache_mb": case.logits_cache_mb}
    margin = CosFace() if case.margin == "combined" else margin_named(case.margin, 64.0, {})
    return PartialFC(margin_softmax=margin, device="cpu", **sizes, **tiling)


def build_step(case: Case, bank: PartialFC, inputs: int) -> Callable[[np.ndarray, np.ndarray], None]:
    """Returns a function for a step of the network on images or items of the task; without a network, of a Linear."""
    linear = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(inputs, case.embedding))
    items: Any = None
    if case.task:
        task = build_task(SimpleNamespace(task=case.task, task_options=case.task_options))
        sizes = {"image_size": None, **task.network_sizes()}
        backbone = get_model(case.network, num_features=case.embedding, **sizes)
        number = case.batch * case.gradient_acc
        items = map_inputs(torch.from_numpy, task.dummy_inputs(number, np.random.default_rng(0)))
    else:
        backbone = get_model(case.network, num_features=case.embedding) if case.network else linear
    engine = build_engine(case, bank, backbone.to(memory_format=torch.channels_last))

    def step(images: np.ndarray, labels: np.ndarray) -> None:
        pixels = torch.from_numpy((images * 40 + 128).clip(0, 255).astype(np.uint8))
        engine.step(Batch(items if case.task else pixels, labels))

    return step


def build_engine(case: Case, bank: PartialFC, backbone: torch.nn.Module) -> TorchEngine:
    if case.activation_checkpointing:
        recompute_blocks(backbone)
    return TorchEngine(
        data_parallel(backbone, bank, getattr(torch, case.gradient_dtype)),
        bank,
        lambda num_update: (0.1, 0.1),
        optimizer=partial(build_optimizer, name=case.backbone_optimizer, momentum=0.9),
        pixels=not case.task,
        gradient_acc=case.gradient_acc,
        ema_decay=0.9 * case.ema,
    )
