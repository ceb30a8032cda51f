"""The layer with DistributedDataParallel. The backward pass updates the centers without storing their gradient.

torchrun --nproc_per_node=2 -m examples.loops.with_ddp
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR

from examples.loops import problem
from partial_fc_torch import PartialFC

dist.init_process_group("gloo")
backbone = DistributedDataParallel(problem.backbone())
layer = PartialFC(**problem.LAYER, sample_rate=0.5)
layer.learning_rate = problem.RATE
optimizer = torch.optim.SGD(backbone.parameters(), lr=problem.RATE, **problem.DECAY)
schedules = [LambdaLR(each, problem.rate_factor) for each in (optimizer, layer.optimizer)]
for images, labels in problem.batches(dist.get_rank()):
    loss = layer(backbone(images), labels)  # mean over the batches of all processes
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(backbone.parameters(), problem.MAX_NORM)
    optimizer.step()
    layer.optimizer.step()  # has no effect, but its schedule expects the call
    for schedule in schedules:
        schedule.step()
    print(f"rank {dist.get_rank()} loss {loss.item():.7f}")
del backbone  # before the group: DistributedDataParallel as its last owner can hang (pytorch/pytorch#56297)
dist.destroy_process_group()
