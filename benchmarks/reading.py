"""Measures the speed of reading images: both trainers' readers, MXNet's C++ ImageRecordIter, and a textbook reader.

. setup-utils/env.sh
python benchmarks/reading.py              # about two minutes, on an idle machine

Draws 9,600 faces of 112x112 (JPEG, about 7.5 KB) and stores them twice: in the layout of training sets, and without
identity records, which ImageRecordIter does not support. Every reader shuffles, mirrors and returns batches of 64 as
float32 NDArrays (64, 3, 112, 112), PyTorch's reader as uint8 tensors. Each runs in a separate process, the readers run
in turn, and the result is the median of the rounds. The processor time of all threads is measured, too, because other
programs have little effect on it. PyTorch's reader needs .venv-torch (setup-utils/install-torch.sh).
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "mxnet"), str(ROOT / "pytorch")]

TORCH_PYTHON = ROOT / ".venv-torch" / "bin" / "python"

BATCH, SIZE = 64, 112
WARM_UP = 20  # batches
DRAWN, VARIANTS = 3, 8  # a face is drawn three times, and each image has eight variants of noise
NOISE, QUALITY = 16, 90  # results in 7.5 KB


# The images ----------------------------------------------------------------------------------------


def draw_identity(label: int) -> list[bytes]:
    """Returns the JPEG files of an identity."""
    import cv2
    import numpy as np

    from partial_fc.data.synthetic.draw import draw_face

    rng, images = np.random.default_rng(label), []
    for picture in range(DRAWN):
        face = draw_face(0, label, picture).astype(np.float32)
        for _ in range(VARIANTS):
            noisy = face + rng.normal(0, NOISE, face.shape[:2])[..., None]
            pixels = np.clip(noisy, 0, 255).astype(np.uint8)[..., ::-1]
            images.append(cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])[1].tobytes())
    return images


def write_sets(folder: Path, identities: int) -> None:
    """Writes faces/train.rec and plain/train.rec, and prints the mean size of their images."""
    from mxnet import recordio

    from partial_fc.data.face_records import write_face_set

    people = [draw_identity(label) for label in range(identities)]
    write_face_set(folder / "faces", people, (SIZE, SIZE))
    (folder / "plain").mkdir()
    paths = (str(folder / "plain" / f"train.{ending}") for ending in ("idx", "rec"))
    writer, key = recordio.MXIndexedRecordIO(*paths, "w"), 0
    for label, images in enumerate(people):
        for image in images:
            writer.write_idx(key, recordio.pack(recordio.IRHeader(0, float(label), key, 0), image))
            key += 1
    writer.close()
    mean = sum(len(image) for images in people for image in images) / key
    print(f"{key} images of {mean:.0f} bytes, {len(os.sched_getaffinity(0))} cores")


# The readers ---------------------------------------------------------------------------------------


def face_image_iter(folder: Path, threads: int):
    from partial_fc_mxnet.image_iter import FaceImageIter

    rec = str(folder / "faces" / "train.rec")
    return FaceImageIter(BATCH, (3, SIZE, SIZE), rec, shuffle=True, rand_mirror=True, threads=threads)


def face_data(folder: Path, threads: int):
    """The reader of the PyTorch trainer."""
    from partial_fc.data.face_items import FaceItems
    from partial_fc.data.item_batches import ItemBatches
    from partial_fc.data.transforms import Augmentation
    from partial_fc_torch import batches

    rec = folder / "faces" / "train.rec"
    faces = ItemBatches(FaceItems(rec, (SIZE, SIZE), Augmentation(rand_mirror=True)), BATCH, shuffle=True)
    return batches.tensor_data(faces, threads, pinned=False)


def image_record_iter(folder: Path, threads: int):
    import mxnet as mx

    return mx.io.ImageRecordIter(
        path_imgrec=str(folder / "plain" / "train.rec"),
        path_imgidx=str(folder / "plain" / "train.idx"),
        data_shape=(3, SIZE, SIZE),
        batch_size=BATCH,
        shuffle=True,
        rand_mirror=True,
        preprocess_threads=threads,
    )


class Textbook:
    """Reads image by image into the rows of the batch, in one thread."""

    def __init__(self, folder: Path, threads: int):
        from mxnet import recordio

        paths = (str(folder / "faces" / f"train.{ending}") for ending in ("idx", "rec"))
        self.records = recordio.MXIndexedRecordIO(*paths, "r")
        first_identity = int(recordio.unpack(self.records.read_idx(0))[0].label[0])
        self.keys = list(range(1, first_identity))
        self.reset()

    def reset(self) -> None:
        random.shuffle(self.keys)
        self.place = 0

    def next(self):
        import mxnet as mx

        if self.place + BATCH > len(self.keys):
            raise StopIteration
        data, labels = mx.nd.empty((BATCH, 3, SIZE, SIZE)), mx.nd.empty((BATCH,))
        for row, key in enumerate(self.keys[self.place : self.place + BATCH]):
            header, encoded = mx.recordio.unpack(self.records.read_idx(key))
            image = mx.image.imdecode(encoded)
            if random.random() < 0.5:
                image = mx.nd.flip(image, axis=1)
            data[row][:] = mx.nd.transpose(image, axes=(2, 0, 1))
            labels[row] = header.label
        self.place += BATCH
        return mx.io.DataBatch([data], [labels], 0)


TORCH_READER = "face_data"
READERS = {
    "FaceImageIter": face_image_iter,
    TORCH_READER: face_data,
    "ImageRecordIter": image_record_iter,
    "textbook": Textbook,
}


def measure(name: str, folder: Path, threads: int, batches: int) -> tuple[float, float]:
    """Returns images per second, and images per second of processor time of all threads."""
    reader = READERS[name](folder, threads)
    for number in range(WARM_UP + batches):
        if number == WARM_UP:
            start, busy = time.perf_counter(), time.process_time()
        try:
            batch = reader.next()
        except StopIteration:
            reader.reset()
            batch = reader.next()
        if name != TORCH_READER:  # tensors are complete without waiting
            batch.data[0].wait_to_read()
    images = batches * BATCH
    return images / (time.perf_counter() - start), images / (time.process_time() - busy)


# The comparison ------------------------------------------------------------------------------------


def measure_in_process(name: str, folder: Path, threads: int, batches: int) -> list[float]:
    options = {"--reader": name, "--folder": folder, "--threads": threads, "--batches": batches}
    python = str(TORCH_PYTHON) if name == TORCH_READER else sys.executable
    command = [python, __file__, *(str(part) for option in options.items() for part in option)]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [float(figure) for figure in result.stdout.split()[-2:]]


def compare(folder: Path, rounds: int, batches: int) -> None:
    cores = len(os.sched_getaffinity(0))
    # ImageRecordIter uses at most this many threads.
    half = max(1, cores // 2 - 1)
    cases = {(name, half) for name in ("FaceImageIter", "ImageRecordIter")} | {
        ("FaceImageIter", cores),
        ("textbook", 1),
    }
    if TORCH_PYTHON.exists():
        cases.add((TORCH_READER, cores))
    speeds: dict = {case: [] for case in sorted(cases)}
    for _ in range(rounds):
        for case, values in speeds.items():
            values.append(measure_in_process(case[0], folder, case[1], batches))
    median = {case: statistics.median(speed for speed, _ in values) for case, values in speeds.items()}
    busy = {case: statistics.median(speed for _, speed in values) for case, values in speeds.items()}
    for (name, threads), values in speeds.items():
        spread = f"{min(values)[0]:.0f} to {max(values)[0]:.0f} in {rounds} rounds"
        per_busy = f"{busy[name, threads]:.0f} per second of a processor"
        print(f"{name:16s} {threads:3d} threads {median[name, threads]:8.0f} images/s  ({spread}; {per_busy})")
    for what, speed in (("", median), (", processor time", busy)):
        ratio = speed["FaceImageIter", half] / speed["ImageRecordIter", half]
        print(f"FaceImageIter / ImageRecordIter, {half} threads each{what}: {ratio:.2f}")
        for name in {name for name, threads in median if threads == cores} - {"textbook", "ImageRecordIter"}:
            print(f"{name}, {cores} threads / textbook{what}: {speed[name, cores] / speed['textbook', 1]:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=150, help="batches per measurement")
    parser.add_argument("--identities", type=int, default=400, help="identities of the set")
    parser.add_argument("--reader", choices=list(READERS), help="measure one reader in this process")
    parser.add_argument("--folder", type=Path, help="folder of the sets, for --reader")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    if args.reader:
        print(*measure(args.reader, args.folder, args.threads, args.batches))
        return
    with tempfile.TemporaryDirectory() as folder:
        write_sets(Path(folder), args.identities)
        compare(Path(folder), args.rounds, args.batches)


if __name__ == "__main__":
    main()
