"""Prints the losses of TorchEngine, which train.py uses, on the problem of examples/loops; argument: sample rate."""

import sys
from functools import partial

import torch
import torch.distributed as dist

from examples.loops import problem
from partial_fc.data.batch import Batch
from partial_fc_torch import PartialFC
from partial_fc_torch.data_parallel import data_parallel
from partial_fc_torch.engine import TorchEngine
from partial_fc_torch.optimizers import build_optimizer


def rates(num_update):
    return 2 * (problem.RATE * problem.rate_factor(num_update - 1),)


dist.init_process_group("gloo")
layer = PartialFC(**problem.LAYER, sample_rate=float(sys.argv[1]))
optimizer = partial(build_optimizer, **problem.DECAY)
engine = TorchEngine(
    data_parallel(problem.backbone(), layer), layer, rates, max_grad_norm=problem.MAX_NORM, optimizer=optimizer
)
for images, labels in problem.batches(dist.get_rank()):
    pixels = ((images + 1) * 127.5).round().to(torch.uint8)
    print(f"rank {dist.get_rank()} loss {engine.step(Batch(pixels, labels.numpy())).item():.7f}")
del engine  # before the group: DistributedDataParallel as its last owner can hang (pytorch/pytorch#56297)
dist.destroy_process_group()
