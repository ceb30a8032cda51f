"""Measures the speed of reading a set in all forms that `rec` accepts, relative to train.rec, by threads and processes.

.venv-torch/bin/python benchmarks/sources.py      # a minute; pip install datasets for Parquet

Writes 1,200 faces of 112x112 (JPEG, about 7.5 KB) and reads them from the page cache in one thread, shuffled and
mirrored, in batches of 64; then in a worker process. Texts are lines of 1,000 numbers, parsed by Python code. All forms
are read in turn, and the result is the median of the rounds. Times are processor times of this process and the worker,
so that other programs have little effect.

Two threads parse no more texts than one, because they need the GIL; N processes use N idle cores. The gain on 2 cores
is computed from these times.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks"), str(ROOT / "tests")]

import numpy as np  # noqa: E402
from reading import BATCH, SIZE, draw_identity  # noqa: E402

import image_forms  # noqa: E402
from partial_fc.data.face_items import FaceItems  # noqa: E402
from partial_fc.data.item_batches import ItemBatches  # noqa: E402
from partial_fc.data.sources.dataset import DatasetItems  # noqa: E402
from partial_fc.data.training_data import Batches  # noqa: E402
from partial_fc.data.transforms import Augmentation  # noqa: E402
from partial_fc.data.worker_batches import WorkerBatches  # noqa: E402

IDENTITIES = 50
TEXTS, VALUES = 4096, 1000


class Texts:
    """A Dataset of numbers as text, parsed by Python code only."""

    targets = np.arange(TEXTS) % IDENTITIES

    def __init__(self):
        rng = np.random.default_rng(0)
        self.lines = [" ".join(map(str, rng.standard_normal(VALUES).round(4))) for _ in range(64)]

    def __len__(self):
        return TEXTS

    def __getitem__(self, position):
        numbers = [float(word) for word in self.lines[position % 64].split()]
        return np.array(numbers, np.float32), int(self.targets[position])


def open_faces(rec: str) -> ItemBatches:
    return ItemBatches(FaceItems(rec, (SIZE, SIZE), Augmentation(rand_mirror=True)), BATCH, shuffle=True)


def open_texts() -> ItemBatches:
    return ItemBatches(DatasetItems(Texts()), BATCH, shuffle=True)


def seconds_per_item(open_batches: Callable[[], Batches], processes: int, epoch: int) -> np.ndarray:
    """Returns the processor time of this process and the worker, without the first batch."""
    batches = open_batches()
    if processes:
        batches = WorkerBatches(batches, open_batches, processes)
    batches.batch(epoch, 0)
    firsts = range(BATCH, batches.num_images - BATCH + 1, BATCH)

    def spent() -> np.ndarray:
        return np.array([time.process_time(), batches.log.counters.cpu_seconds])

    start = spent()
    for first in firsts:
        batches.batch(epoch, first)
    seconds = spent() - start
    batches.close()
    return seconds / (BATCH * len(firsts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    image_forms.SIZE = (SIZE, SIZE)
    people = [draw_identity(label) for label in range(IDENTITIES)]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HF_HOME"] = str(Path(folder, "cache"))
        sys.path.insert(0, str(Path(folder, "dataset")))
        sources: dict[str, Callable[[], Batches]] = {
            form: partial(open_faces, write(Path(folder, form), people)) for form, write in image_forms.FORMS.items()
        }
        cases = [(name, processes) for name in (*sources, "texts") for processes in (0, 1)]
        sources["texts"] = open_texts
        rounds = [
            {case: seconds_per_item(sources[case[0]], case[1], epoch) for case in cases} for epoch in range(args.rounds)
        ]
    median = {case: np.median([seconds[case] for seconds in rounds], axis=0) for case in cases}
    for name in sources:
        thread, process = median[name, 0].sum(), median[name, 1].sum()
        line = (
            f"{name:8s} {1 / thread:7.0f}/s in a thread, {1 / process:7.0f}/s in a process ({thread / process:.2f} x)"
        )
        if name != "texts":
            line += f", {median['records', 0].sum() / thread:.2f} x train.rec"
        print(f"{line}, of which {1e6 * median[name, 1][0]:.0f} of {1e6 * process:.0f} us in the process that trains")
    texts = 2 / median["texts", 1].sum() * median["texts", 0].sum()
    print(f"2 cores, computed: 2 processes parse {texts:.2f} x the texts of 2 threads")


if __name__ == "__main__":
    main()
