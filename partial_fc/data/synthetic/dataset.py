"""Writes the data set `demo`: drawn faces in the format of the real sets.

root/train.rec, train.idx, property   identities 0 .. identities-1, `images_per_identity` images each
root/demo_val.bin                     pairs of held-out identities, in ten folds of half same, half different
root/demo.json                        the parameters, so that an up-to-date set is not written again
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from partial_fc.data.face_records import write_face_set
from partial_fc.data.pairs_bin import write_pairs
from partial_fc.utils.process_pool import usable_cores
from partial_fc.utils.staging import staged_folder

from .identity import random_stream
from .workers import Task, encode_faces

VERSION = 3  # increase it with every change of pixels, so that existing sets are written again
SEED = 2022
IDENTITIES = 1000
IMAGES_PER_IDENTITY = 20
HELD_OUT = 200  # identities of the validation pairs
PAIRS = 2000
FOLDS = 10
HELD_OUT_START = 2**31  # above all training identities
PAIR_STREAM = 3
META = "demo.json"
VALIDATION = "demo_val.bin"
FILES = ("train.rec", "train.idx", "property", VALIDATION)

Progress = Callable[[int, int], None]  # (images drawn, number of images)


def ensure_demo(
    root: str | Path,
    seed: int = SEED,
    identities: int = IDENTITIES,
    images_per_identity: int = IMAGES_PER_IDENTITY,
    held_out: int = HELD_OUT,
    pairs: int = PAIRS,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Path:
    """Writes the set unless `root` is up to date; returns its folder. Raises what write_demo raises."""
    root = Path(root)
    if not is_current(root, _meta(seed, identities, images_per_identity, held_out, pairs)):
        write_demo(root, seed, identities, images_per_identity, held_out, pairs, workers, progress)
    return root


def write_demo(
    root: str | Path,
    seed: int = SEED,
    identities: int = IDENTITIES,
    images_per_identity: int = IMAGES_PER_IDENTITY,
    held_out: int = HELD_OUT,
    pairs: int = PAIRS,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Path:
    """Draws and writes the set; returns its folder.

    The folder appears when the set is complete. An older demo set is replaced; any other folder with files is refused.

    Args:
        root: folder of the set.
        seed: of the faces.
        identities: identities for training.
        images_per_identity: images of each.
        held_out: identities of the validation pairs.
        pairs: number of validation pairs.
        workers: number of processes (default: one per usable core).
        progress: called after each image.

    Raises:
        ValueError: a number is out of range, or `root` contains something else.
        OSError: the set cannot be written.
    """
    root = Path(root)
    meta = _meta(seed, identities, images_per_identity, held_out, pairs)
    _check(root, meta)
    workers = usable_cores() if workers is None else workers
    try:
        with staged_folder(root, force=True) as stage:
            _write_files(Path(stage), meta, workers, progress)
    except OSError:
        if not is_current(root, meta):  # else another process has written the same set meanwhile
            raise
    return root


def is_current(root: Path, meta: dict[str, int]) -> bool:
    """Whether `root` contains a complete set with these parameters."""
    try:
        same = json.loads((root / META).read_text()) == meta
    except (OSError, ValueError):
        return False
    return same and all((root / name).is_file() for name in FILES)


def plan_pairs(seed: int, held_out: int, pairs: int) -> tuple[list[tuple[int, int]], list[bool]]:
    """Draws the pairs: identities (P, 2), and whether they are the same.

    Ten folds in sequence that share no identity, in each the pairs of one person first.
    """
    random = random_stream(PAIR_STREAM, seed).random
    plan: list[tuple[int, int]] = []
    issame: list[bool] = []
    for fold in range(FOLDS):
        people = range(HELD_OUT_START + fold, HELD_OUT_START + held_out, FOLDS)
        for turn in range(pairs // FOLDS):
            same = turn < pairs // FOLDS // 2
            first, step = (random(2) * (len(people), len(people) - 1)).astype(int).tolist()
            second = first if same else (first + 1 + step) % len(people)
            plan.append((people[first], people[second]))
            issame.append(same)
    return plan, issame


def _write_files(folder: Path, meta: dict[str, int], workers: int, progress: Progress | None) -> None:
    people, per_person = meta["identities"], meta["images_per_identity"]
    plan, issame = plan_pairs(meta["seed"], meta["held_out"], meta["pairs"])
    tasks: list[Task] = [(person, image) for person in range(people) for image in range(per_person)]
    # Every side of every pair is a different image: its number is its place in the file.
    tasks += [(person, image) for image, person in enumerate(person for pair in plan for person in pair)]
    pictures = _counted(encode_faces(meta["seed"], tasks, workers), len(tasks), progress)
    write_face_set(folder, (islice(pictures, per_person) for _ in range(people)))
    write_pairs(folder / VALIDATION, list(pictures), issame)
    (folder / META).write_text(json.dumps(meta, indent=1) + "\n")


def _counted(pictures: Iterator[bytes], total: int, progress: Progress | None) -> Iterator[bytes]:
    for done, picture in enumerate(pictures, start=1):
        yield picture
        if progress is not None:
            progress(done, total)


def _meta(seed: int, identities: int, images_per_identity: int, held_out: int, pairs: int) -> dict[str, int]:
    return {
        "version": VERSION,
        "seed": seed,
        "identities": identities,
        "images_per_identity": images_per_identity,
        "held_out": held_out,
        "pairs": pairs,
    }


def _check(root: Path, meta: dict[str, int]) -> None:
    if root.exists() and not (root / META).exists() and (not root.is_dir() or any(root.iterdir())):
        raise ValueError(f"{root} contains something else than a demo set: name another folder, or empty this one")
    if not 1 <= meta["identities"] <= HELD_OUT_START or meta["images_per_identity"] < 1:
        raise ValueError(
            f"a demo set needs at least 1 identity and 1 image each, "
            f"got {meta['identities']} and {meta['images_per_identity']}"
        )
    if meta["held_out"] < 2 * FOLDS or meta["pairs"] < 2 * FOLDS or meta["pairs"] % (2 * FOLDS):
        raise ValueError(
            f"validation pairs come in {FOLDS} folds of half same, half different: held_out must be at least "
            f"{2 * FOLDS} and pairs a multiple of {2 * FOLDS}, got {meta['held_out']} and {meta['pairs']}"
        )
