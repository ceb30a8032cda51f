"""Loads a layer from a distributed checkpoint, trains a step and saves the layer in another folder.

Arguments: folder to load from, or "-" for none; folder to save in; type of the centers. Rank 0 writes all ranks' arrays
to <folder>.npz, in float32.
"""

import sys

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from partial_fc_torch import CosFace, PartialFC, ShardedState
from partial_fc_torch.layer.optimizers import AdamW

CLASSES, E = 20, 4
before, after, center_dtype = sys.argv[1:]
if dist.is_torchelastic_launched():
    dist.init_process_group("gloo")
layer = PartialFC(
    margin_softmax=CosFace(),
    num_classes=CLASSES,
    sample_rate=0.5,
    sub_centers=2,
    embedding_size=E,
    optimizer=AdamW(),
    seed=len(before),
    center_dtype=center_dtype,
)
layer.learning_rate = 0.1


def write(path):
    rows = {name: layer.rows(name).float().numpy() for name in layer.widths}
    gathered = layer.collectives.gather_object("rows", rows)
    if layer.collectives.rank == 0:
        np.savez(path, **{name: np.concatenate([each[name] for each in gathered]) for name in layer.widths})


if before != "-":
    dcp.load({"layer": ShardedState(layer)}, checkpoint_id=before)
write(f"{after}-before.npz")
layer.step(torch.ones(2, E), torch.arange(2))
print(f"update {layer.num_update}")
write(f"{after}.npz")
dcp.save({"layer": ShardedState(layer)}, checkpoint_id=after)
if dist.is_initialized():
    dist.destroy_process_group()
