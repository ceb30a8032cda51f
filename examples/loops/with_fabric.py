"""The layer with Lightning Fabric and an explicit optimizer step for the centers.

torchrun --nproc_per_node=2 -m examples.loops.with_fabric
"""

import os

import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from torch.optim.lr_scheduler import LambdaLR

from examples.loops import problem
from partial_fc_torch import PartialFC

fabric = Fabric(accelerator="cpu", strategy="ddp", devices=int(os.environ["LOCAL_WORLD_SIZE"]))
fabric.launch()
# The layer itself is not set up by Fabric, because each process holds different classes.
layer = PartialFC(**problem.LAYER, sample_rate=0.5, update_in_backward=False)
layer.learning_rate = problem.RATE
body = problem.backbone()
backbone, optimizer = fabric.setup(body, torch.optim.SGD(body.parameters(), lr=problem.RATE, **problem.DECAY))
schedules = [LambdaLR(each, problem.rate_factor) for each in (optimizer, layer.optimizer)]
for images, labels in problem.batches(fabric.global_rank):
    loss = layer(backbone(images), labels)
    fabric.backward(loss)
    fabric.clip_gradients(backbone, optimizer, max_norm=problem.MAX_NORM)
    for each in (optimizer, layer.optimizer):
        each.step()
        each.zero_grad()
    for schedule in schedules:
        schedule.step()
    print(f"rank {fabric.global_rank} loss {loss.item():.7f}")
del backbone  # before the group: DistributedDataParallel as its last owner can hang (pytorch/pytorch#56297)
dist.destroy_process_group()
