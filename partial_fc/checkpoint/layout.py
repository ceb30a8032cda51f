"""The names in a folder of checkpoints.

step-0000000500/            a checkpoint: complete, because it has this name
    manifest.json           what it consists of, written last
    backbone.npz            parameters and optimizer states, by rank 0
    rank-00000.npz          running statistics of rank 0's own images, likewise for every rank
    centers-00000.npy       (L, E) float32, the centers of rank 0's classes in their order
    momentum-00000.npy      (L, E) float32, their momentum
step-0000001000.writing/    one that is being made, or was when its training ended
step-0000000100.old/        one that is being removed
step-0000002000.left/       one that nobody goes on from any more, because training went on from an older one
"""

from __future__ import annotations

import re

MANIFEST = "manifest.json"
BACKBONE = "backbone.npz"
WRITING, OLD, LEFT = ".writing", ".old", ".left"

_STEP = re.compile(r"step-(\d{10,18})")
_FILE = re.compile(r"backbone\.npz|rank-\d{5,9}\.npz|(centers|momentum)-\d{5,9}\.npy")


def step_name(num_update: int) -> str:
    """Name of the folder of the checkpoint after that many updates; sorted by name they are in order."""
    return f"step-{num_update:010}"


def step_number(name: str) -> int | None:
    """The number of updates in the name of a complete checkpoint's folder, None for other names."""
    match = _STEP.fullmatch(name)
    return int(match.group(1)) if match else None


def is_file_name(name: str) -> bool:
    """Whether a manifest may name it: then it is in the checkpoint's folder and nowhere else."""
    return _FILE.fullmatch(name) is not None


def statistics_file(rank: int) -> str:
    """File of the arrays that this rank alone has."""
    return f"rank-{rank:05}.npz"


def centers_file(rank: int) -> str:
    """File of this rank's centers."""
    return f"centers-{rank:05}.npy"


def momentum_file(rank: int) -> str:
    """File of the momentum of this rank's centers."""
    return f"momentum-{rank:05}.npy"


def files_of(ranks: int) -> set[str]:
    """All files that a checkpoint of so many ranks consists of, beside its manifest."""
    kinds = (statistics_file, centers_file, momentum_file)
    return {BACKBONE, *(kind(rank) for kind in kinds for rank in range(ranks))}
