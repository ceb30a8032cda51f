"""Names of the files in a folder of checkpoints.

step-0000000500/            a complete checkpoint: only complete ones have such a name
    manifest.json           sizes, hashes and state; written last
    backbone.npz            parameters, optimizer states and the state of the loss, written by rank 0
    rank-00000.npz          running statistics of rank 0's images; one file per rank
    centers-00000.npy       (L, E) float32, the centers of rank 0's classes in order; one file per rank
    momentum-00000.npy      (L, E) float32, their momentum; one file per rank
    state-<name>-00000.npy  (L, width) float32, another state of their optimizer; one file per rank
step-0000001000.writing/    an incomplete checkpoint
step-0000000100.old/        a checkpoint that is being removed
step-0000002000.left/       a checkpoint newer than the one that training was resumed from
"""

import re
from collections.abc import Collection, Iterator

MANIFEST = "manifest.json"
BACKBONE = "backbone.npz"
WRITING, OLD, LEFT = ".writing", ".old", ".left"

step_name = "step-{:010}".format  # from a number of updates to the name of a checkpoint; names sort in this order
statistics_file = "rank-{:05}.npz".format  # from a rank to the name of its file

_STEP = re.compile(r"step-(\d{10,18})")
_FILE = re.compile(r"backbone\.npz|rank-\d{5,9}\.npz|(centers|momentum|state-\w+)-\d{5,9}\.npy", re.ASCII)


def center_file(field: str, rank: int) -> str:
    """Returns the name of a rank's file of centers, "weight", or of a state of their optimizer."""
    kind = {"weight": "centers", "weight_mom": "momentum"}.get(field, f"state-{field}")
    return f"{kind}-{rank:05}.npy"


def step_number(name: str) -> int | None:
    """Returns the number of updates in the name of a complete checkpoint's folder; None for other names."""
    match = _STEP.fullmatch(name)
    return int(match.group(1)) if match else None


def is_file_name(name: str) -> bool:
    """Returns whether this is a file name of checkpoints, which cannot lead out of the checkpoint's folder."""
    return _FILE.fullmatch(name) is not None


def files_of(ranks: int, fields: Collection[str]) -> Iterator[str]:
    """Yields the names of all files of a checkpoint but the manifest, of ``ranks`` ranks with these center_files."""
    yield BACKBONE
    for rank in range(ranks):
        yield statistics_file(rank)
        for field in fields:
            yield center_file(field, rank)
