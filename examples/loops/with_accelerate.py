"""The layer with Accelerate and an explicit optimizer step for the centers.

torchrun --nproc_per_node=2 -m examples.loops.with_accelerate
"""

import torch
from accelerate import Accelerator
from torch.optim.lr_scheduler import LambdaLR

from examples.loops import problem
from partial_fc_torch import PartialFC

accelerator = Accelerator(cpu=True)
layer = PartialFC(**problem.LAYER, sample_rate=0.5, update_in_backward=False)
layer.learning_rate = problem.RATE
backbone = problem.backbone()
optimizer = torch.optim.SGD(backbone.parameters(), lr=problem.RATE, **problem.DECAY)
# The layer itself is not prepared, because each process holds different classes.
backbone, optimizer, center_optimizer = accelerator.prepare(backbone, optimizer, layer.optimizer)
# The schedules are not prepared either: Accelerate would step them once for each process.
schedules = [LambdaLR(each.optimizer, problem.rate_factor) for each in (optimizer, center_optimizer)]
for images, labels in problem.batches(accelerator.process_index):
    loss = layer(backbone(images), labels)
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(backbone.parameters(), problem.MAX_NORM)
    for each in (optimizer, center_optimizer):
        each.step()
        each.zero_grad()
    for schedule in schedules:
        schedule.step()
    print(f"rank {accelerator.process_index} loss {loss.item():.7f}")
# Before the process group: as its last owner, DistributedDataParallel can hang (pytorch/pytorch#56297).
(backbone,) = accelerator.free_memory(backbone)
accelerator.end_training()
