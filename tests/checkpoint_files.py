"""Writes checkpoints for the tests of code that reads them."""

import os

import numpy as np

from partial_fc.checkpoint import CheckpointFolder, Manifest, array_chunks, npz_chunks, write_file
from partial_fc.checkpoint.layout import BACKBONE, center_file, statistics_file
from partial_fc.layer.sharding import shard_of

E = 3
BACKBONE_ARRAYS = {"arg:stage1/bn1_gamma": np.arange(4, dtype=np.float32), "state:fc1_weight:0": np.ones((2, 3), "f4")}


def centers(classes, seed=0):
    """Centers and momentum (C, E) of all classes."""
    return np.random.default_rng(seed).standard_normal((2, classes, E)).astype(np.float32)


def write_checkpoint(folder, num_update, classes=7, ranks=2, seed=0, commit=True, states=None, weight=None):
    """Writes a checkpoint as `ranks` ranks do, with several pieces per center file; returns its path.

    `states` are name -> (C, width); by default, the checkpoint is of an earlier version, which has momentum.
    `weight` replaces the random centers.
    """
    random, momentum = centers(classes, seed)
    fields = {
        "weight": random if weight is None else weight,
        **({"weight_mom": momentum} if states is None else states),
    }
    shards = [shard_of(classes, rank, ranks) for rank in range(ranks)]
    folder = CheckpointFolder(str(folder), kept=1)
    path = folder.begin(num_update)
    chunks = {BACKBONE: npz_chunks({**BACKBONE_ARRAYS, "arg:seed": np.float32([seed])})}
    for rank, (start, stop) in enumerate(shards):
        chunks[statistics_file(rank)] = npz_chunks({"aux:bn_moving_mean": np.float32([rank, seed])})
        for field, rows in fields.items():
            # Two pieces; a single empty one on a rank without classes.
            chunks[center_file(field, rank)] = array_chunks(
                [rows[start : start + 1], rows[start + 1 : stop]] if stop > start else [rows[:0]]
            )
    files = {name: write_file(os.path.join(path, name), content) for name, content in chunks.items()}
    samplers = [{"sampler": rank} for rank in range(ranks)]
    widths = {} if states is None else {"center_widths": {field: rows.shape[1] for field, rows in fields.items()}}
    state = {"data": None, **widths}
    manifest = Manifest(num_update, classes, E, ranks, shards, files, state, samplers, {"time": "noon"})
    return folder.commit(num_update, manifest) if commit else path
