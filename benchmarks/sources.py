"""Speed of reading one set in every form that `rec` can name, as a ratio to train.rec.

.venv-torch/bin/python benchmarks/sources.py      # half a minute; pip install datasets for Parquet

Writes 1,200 faces of 112x112 (JPEG, about 7.5 KB), and reads them from the page cache in one thread, shuffled and
mirrored, in batches of 64. The forms are read in turn, and the median of the rounds counts. Time is that of the
processor, so that other programs disturb less.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from reading import BATCH, SIZE, draw_identity  # noqa: E402

import image_forms  # noqa: E402
from partial_fc.data.batch_loader import FaceBatches  # noqa: E402
from partial_fc.data.transforms import Augmentation  # noqa: E402

IDENTITIES = 50


def seconds_per_image(rec: str, epoch: int) -> float:
    """Returns the time of the processor; the first batch is not counted."""
    faces = FaceBatches(rec, BATCH, (SIZE, SIZE), shuffle=True, augmentation=Augmentation(rand_mirror=True))
    faces.batch(epoch, 0)
    firsts = range(BATCH, faces.num_images - BATCH + 1, BATCH)
    start = time.process_time()
    for first in firsts:
        faces.batch(epoch, first)
    seconds = time.process_time() - start
    faces.records.close()
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
        recs = {form: write(Path(folder, form), people) for form, write in image_forms.FORMS.items()}
        rounds = [{form: seconds_per_image(rec, epoch) for form, rec in recs.items()} for epoch in range(args.rounds)]
    median = {form: statistics.median(seconds[form] for seconds in rounds) for form in recs}
    for form, seconds in median.items():
        print(f"{form:8s} {1 / seconds:7.0f} images/s of one core, {median['records'] / seconds:.2f} x train.rec")


if __name__ == "__main__":
    main()
