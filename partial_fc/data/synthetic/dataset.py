"""Writes the data set `demo`: synthetic faces in the format of the real sets.

root/train.rec, train.idx, property   identities 0 .. identities-1, `images_per_identity` images each
root/demo_val.bin                     pairs of held-out identities in ten folds, half of each fold the same identity
root/demo.json                        the parameters
"""

from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from partial_fc.data.face_records import write_face_set
from partial_fc.data.pairs_bin import write_pairs
from partial_fc.utils.cores import usable_cores

from .draw import encode_face
from .identity import random_stream
from .writer import SyntheticSet, draw_all

VERSION = 3  # increase it whenever pixels change, so that existing sets are written again
FOLDS = 10
HELD_OUT_START = 2**31  # above all training identities
PAIR_STREAM = 3
META = "demo.json"
VALIDATION = "demo_val.bin"
FILES = ("train.rec", "train.idx", "property", VALIDATION)


class DemoSize(NamedTuple):
    """The parameters of a set."""

    seed: int = 2022  # of the faces
    identities: int = 1000  # for training
    images_per_identity: int = 20
    held_out: int = 200  # identities of the validation pairs
    pairs: int = 2000  # for validation

    @property
    def images(self) -> int:
        """Number of images to draw."""
        return self.identities * self.images_per_identity + 2 * self.pairs

    def check(self) -> None:
        """Raises ValueError if a number is out of range."""
        if not 1 <= self.identities <= HELD_OUT_START or self.images_per_identity < 1:
            raise ValueError(
                f"a demo set needs at least 1 identity and 1 image each, "
                f"got {self.identities} and {self.images_per_identity}"
            )
        if self.held_out < 2 * FOLDS or self.pairs < 2 * FOLDS or self.pairs % (2 * FOLDS):
            raise ValueError(
                f"each of {FOLDS} validation folds has as many pairs of one person as of two: held_out must be at "
                f"least {2 * FOLDS} and pairs a multiple of {2 * FOLDS}, got {self.held_out} and {self.pairs}"
            )


DEMO = DemoSize()


def demo_set(root: str | Path, size: DemoSize = DEMO) -> SyntheticSet:
    """Returns the set of this size in a folder, which may not be written yet."""
    return SyntheticSet(Path(root), META, {"version": VERSION, **size._asdict()}, FILES)


def write_demo(root: str | Path, size: DemoSize = DEMO, workers: int | None = None) -> None:
    """Draws and writes the set unless it exists. The complete folder replaces an older set.

    The worker processes import the caller's main script, which needs ``if __name__ == "__main__"`` as with
    multiprocessing.

    Args:
        root: folder of the set.
        size: the parameters.
        workers: number of processes (default: one per usable core).

    Raises:
        ValueError: a number is out of range.
        OSError: the set cannot be written, or `root` contains something else.
    """
    size.check()
    workers = usable_cores() if workers is None else workers
    written = demo_set(root, size)
    if not written.is_current():
        written.write(partial(_write_files, size, workers))


def plan_pairs(size: DemoSize) -> tuple[list[tuple[int, int]], list[bool]]:
    """Returns the identities of the pairs, (P, 2), and whether they are the same, (P,).

    The ten folds follow each other and share no identity; each begins with its pairs of the same identity.
    """
    random = random_stream(PAIR_STREAM, size.seed).random
    plan: list[tuple[int, int]] = []
    issame: list[bool] = []
    for fold in range(FOLDS):
        people = range(HELD_OUT_START + fold, HELD_OUT_START + size.held_out, FOLDS)
        for turn in range(size.pairs // FOLDS):
            same = turn < size.pairs // FOLDS // 2
            first, step = (random(2) * (len(people), len(people) - 1)).astype(int).tolist()
            second = first if same else (first + 1 + step) % len(people)
            plan.append((people[first], people[second]))
            issame.append(same)
    return plan, issame


def _write_files(size: DemoSize, workers: int, folder: Path) -> None:
    plan, issame = plan_pairs(size)
    tasks = [(person, image) for person in range(size.identities) for image in range(size.images_per_identity)]
    # All images of the pairs differ, because an image is numbered by its position in the file.
    tasks += [(person, image) for image, person in enumerate(chain.from_iterable(plan))]
    pictures = draw_all(partial(_encode, size.seed), tasks, workers)
    write_face_set(folder, (islice(pictures, size.images_per_identity) for _ in range(size.identities)))
    write_pairs(folder / VALIDATION, list(pictures), issame)


def _encode(seed: int, task: tuple[int, int]) -> bytes:
    return encode_face(seed, *task)
