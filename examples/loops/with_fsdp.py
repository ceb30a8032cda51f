"""The layer with a backbone in FSDP2, and a checkpoint that any number of processes can load.

torchrun --nproc_per_node=2 -m examples.loops.with_fsdp FOLDER
"""

import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim.lr_scheduler import LambdaLR

from examples.loops import problem
from partial_fc_torch import PartialFC, ShardedState

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
backbone = fully_shard(problem.backbone(), mesh=mesh)  # averages the gradients like DistributedDataParallel
layer = PartialFC(**problem.LAYER, sample_rate=0.5)
layer.learning_rate = problem.RATE
optimizer = torch.optim.SGD(backbone.parameters(), lr=problem.RATE, **problem.DECAY)
schedules = [LambdaLR(each, problem.rate_factor) for each in (optimizer, layer.optimizer)]
for images, labels in problem.batches(dist.get_rank()):
    loss = layer(backbone(images), labels)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(backbone.parameters(), problem.MAX_NORM)
    optimizer.step()
    layer.optimizer.step()
    for schedule in schedules:
        schedule.step()
    print(f"rank {dist.get_rank()} loss {loss.item():.7f}")
weights, momentum = get_state_dict(backbone, optimizer)
dcp.save({"backbone": weights, "optimizer": momentum, "layer": ShardedState(layer)}, checkpoint_id=sys.argv[1])
dist.destroy_process_group()
