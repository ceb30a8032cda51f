"""A loop like arcface_torch's train_v2.py, in which only one import is changed. It resumes from its checkpoint.

torchrun --nproc_per_node=2 -m examples.loops.as_arcface_torch FOLDER EPOCHS
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR

from examples.loops import problem
from partial_fc_torch import CombinedMarginLoss, PartialFC_V2

EPOCH = 4  # batches
folder, epochs = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo")
rank, device = dist.get_rank(), torch.device("cpu")
checkpoint_path = os.path.join(folder, f"checkpoint_gpu_{rank}.pt")
backbone = DistributedDataParallel(problem.backbone().train().to(device), broadcast_buffers=False)
margin_loss = CombinedMarginLoss(problem.MARGIN.scale, 1.0, 0.0, 0.4, 0)
module_partial_fc = PartialFC_V2(margin_loss, problem.EMBEDDING, problem.CLASSES, 1.0, False)
module_partial_fc.train().to(device)
opt = torch.optim.SGD(
    [{"params": backbone.parameters()}, {"params": module_partial_fc.parameters()}], lr=problem.RATE, **problem.DECAY
)
lr_scheduler = LambdaLR(opt, problem.rate_factor)
amp = torch.amp.GradScaler(device.type, growth_interval=100)
start_epoch = 0
if os.path.exists(checkpoint_path):
    saved = torch.load(checkpoint_path, weights_only=True)
    start_epoch = saved["epoch"]
    backbone.module.load_state_dict(saved["state_dict_backbone"])
    module_partial_fc.load_state_dict(saved["state_dict_softmax_fc"])
    opt.load_state_dict(saved["state_optimizer"])
    lr_scheduler.load_state_dict(saved["state_lr_scheduler"])
for epoch in range(start_epoch, epochs):
    for img, local_labels in problem.batches(rank, range(EPOCH * epoch, EPOCH * (epoch + 1))):
        loss = module_partial_fc(backbone(img), local_labels)
        amp.scale(loss).backward()
        amp.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(backbone.parameters(), problem.MAX_NORM)
        amp.step(opt)
        amp.update()
        opt.zero_grad()
        lr_scheduler.step()
        print(f"rank {rank} loss {loss.item():.7f}")
    checkpoint = {
        "epoch": epoch + 1,
        "state_dict_backbone": backbone.module.state_dict(),
        "state_dict_softmax_fc": module_partial_fc.state_dict(),
        "state_optimizer": opt.state_dict(),
        "state_lr_scheduler": lr_scheduler.state_dict(),
    }
    torch.save(checkpoint, checkpoint_path)
del backbone  # before the group: DistributedDataParallel as its last owner can hang (pytorch/pytorch#56297)
dist.destroy_process_group()
