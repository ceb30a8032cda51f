"""Time and memory of opening a set of Glint360K's size: 17,091,657 images of 360,232 identities.

. setup-utils/env.sh
python benchmarks/opening.py        # needs 1.1 GB in the temporary folder

The images have one byte each, as opening does not read them. Two processes open the set at the same time, as two ranks
of a host do; then two more, which use the shared index that the first ones have written.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from partial_fc.data.recordio.format import MAGIC  # noqa: E402

IMAGES, IDENTITIES, RANKS = 17_091_657, 360_232, 2
CHUNK = 1 << 20  # records written at once

# A record in the file: two words, the header, then one byte of image and padding, or two labels.
IMAGE = np.dtype([("words", "<u4", 2), ("flag", "<u4"), ("label", "<f4"), ("ids", "<u8", 2), ("image", "u1", 4)])
RANGE = np.dtype([("words", "<u4", 2), ("flag", "<u4"), ("label", "<f4"), ("ids", "<u8", 2), ("labels", "<f4", 2)])

OPEN = """
import sys, time
import numpy as np
from partial_fc.data.face_records import FaceRecords
def status(name):
    return int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith(name))) / 1024
before = status("VmHWM")
start = time.perf_counter()
faces = FaceRecords(sys.argv[1])
seconds = time.perf_counter() - start
print(f"{faces.num_images} images of {faces.num_identities} identities in {seconds:.2f} s, "
      f"peak {status('VmHWM'):.0f} MB ({before:.0f} MB before), own memory {status('RssAnon'):.0f} MB, "
      f"last label {faces.labels([faces.num_images - 1])[0]}")
"""


def write_set(folder: Path) -> None:
    """Writes the same set as partial_fc.data.face_records.write_face_set, many records at a time."""
    ends = 1 + np.linspace(0, IMAGES, IDENTITIES + 1).astype(np.int64)
    with open(folder / "train.rec", "wb") as rec, open(folder / "train.idx", "w") as idx:
        for begin in range(1, IMAGES + 1, CHUNK):
            keys = np.arange(begin, min(begin + CHUNK, IMAGES + 1))
            records = np.zeros(len(keys), IMAGE)
            records["words"] = MAGIC, 25
            records["label"] = np.searchsorted(ends, keys, side="right") - 1
            records["ids"][:, 0] = keys
            write(rec, idx, keys, records)
        ranges = np.stack([ends[:-1], ends[1:]], axis=1)
        write(rec, idx, IMAGES + 1 + np.arange(IDENTITIES), range_records(ranges))
        write(rec, idx, np.array([0]), range_records(np.array([[IMAGES + 1, IMAGES + 1 + IDENTITIES]])))


def range_records(ranges: np.ndarray) -> np.ndarray:
    records = np.zeros(len(ranges), RANGE)
    records["words"], records["flag"] = (MAGIC, 32), 2
    records["ids"], records["labels"] = ranges, ranges
    return records


def write(rec, idx, keys: np.ndarray, records: np.ndarray) -> None:
    offsets = rec.tell() + records.itemsize * np.arange(len(records))
    records.tofile(rec)
    rec.flush()
    idx.write("".join(f"{key}\t{offset}\n" for key, offset in zip(keys.tolist(), offsets.tolist())))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_set(Path(folder))
        command = [sys.executable, "-c", OPEN, f"{folder}/train.rec"]
        for title in ("first", "again"):
            processes = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(RANKS)]
            for process in processes:
                output, _ = process.communicate()
                print(f"{title}: {output.strip()}", flush=True)
                if process.returncode:
                    sys.exit(process.returncode)


if __name__ == "__main__":
    main()
