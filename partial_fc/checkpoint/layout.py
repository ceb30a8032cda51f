"""Names of the files in a folder of checkpoints.

step-0000000500/            a complete checkpoint; only complete ones have such a name
    manifest.json           sizes, hashes and state; written last
    backbone.npz            parameters, optimizer states and the loss's state, written by rank 0
    rank-00000.npz          running statistics of rank 0's images; one file per rank
    centers-00000.npy       (L, E) float32, the centers of rank 0's classes in order; one file per rank
    momentum-00000.npy      (L, E) float32, momentum of the centers; one file per rank
    state-<name>-00000.npy  (L, width) float32, another optimizer state of the centers; one file per rank
                            With center_dtype=bfloat16, uint16 with the bits of bfloat16 in place of float32.
                            With K sub-centers, a row has the K rows of its class one after another.
    <head>.centers-...      the same files of each further head; the first head's are those above
step-0000001000.writing/    an incomplete checkpoint
step-0000000100.old/        a checkpoint that is being removed
step-0000002000.left/       a checkpoint newer than the one that the training resumed from
"""

import re
from collections.abc import Collection, Iterator, Mapping

MANIFEST = "manifest.json"
BACKBONE = "backbone.npz"
WRITING, OLD, LEFT = ".writing", ".old", ".left"

step_name = "step-{:010}".format  # number of updates -> name of a checkpoint; names sort by updates
statistics_file = "rank-{:05}.npz".format  # rank -> name of its file

_STEP = re.compile(r"step-(\d{10,18})")
_FILE = re.compile(r"backbone\.npz|rank-\d{5,9}\.npz|(\w{1,40}\.)?(centers|momentum|state-\w+)-\d{5,9}\.npy", re.ASCII)


def center_file(field: str, rank: int, head: str = "") -> str:
    """Returns the name of a rank's file of centers (field "weight") or of an optimizer state of the centers.

    ``head`` is empty for the first head.
    """
    kind = {"weight": "centers", "weight_mom": "momentum"}.get(field, f"state-{field}")
    return f"{head and f'{head}.'}{kind}-{rank:05}.npy"


def step_number(name: str) -> int | None:
    """Returns the number of updates in the name of a complete checkpoint; None for other names."""
    match = _STEP.fullmatch(name)
    return int(match.group(1)) if match else None


def is_file_name(name: str) -> bool:
    """Returns whether this is the name of a checkpoint's file; such a name cannot lead out of the folder."""
    return _FILE.fullmatch(name) is not None


def files_of(ranks: int, fields: Collection[str], heads: Mapping[str, Collection[str]] = {}) -> Iterator[str]:
    """Yields the names of all files of a checkpoint but the manifest.

    Args:
        ranks: number of ranks.
        fields: see center_file.
        heads: name of each further head -> its fields.
    """
    all_heads = {"": fields, **heads}
    yield BACKBONE
    for rank in range(ranks):
        yield statistics_file(rank)
        for head, of_head in all_heads.items():
            for field in of_head:
                yield center_file(field, rank, head)
