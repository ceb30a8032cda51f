"""Time and memory of IJB-C without its images: lists of 469,375 images and 15,658,489 pairs of 23,124 templates.

. setup-utils/env.sh
python benchmarks/ijb.py        # needs 260 MB in the folder of temporary files

Templates are random vectors and pairs are random; the searches have as many probes and gallery templates as IJB-C. In
the real list adjacent lines share a template, which is faster. Each step runs in its own process, which prints its peak
memory and, for comparison, the peak after the imports.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

IMAGES, PAIRS, TEMPLATES, EMBEDDING = 469_375, 15_658_489, 23_124, 512
GENUINE = 19_557  # of the pairs
CHUNK = 1 << 20  # lines written at once

START = f"""
import sys, time
import numpy as np
from partial_fc.evaluation.ijb.alignment import similarities
from partial_fc.evaluation.ijb.identification import identify
from partial_fc.evaluation.ijb.image_list import read_images
from partial_fc.evaluation.ijb.pairs import Pairs, read_pairs
from partial_fc.evaluation.ijb.verification import FARS, Roc, pair_scores
class Bar:
    def update(self, count): pass
def status(name):
    return int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith(name))) / 1024
def report(step):
    print(f"{{step}}: {{time.perf_counter() - start:.1f}} s, peak {{status('VmHWM'):.0f}} MB ({{before:.0f}} before)")
def unit(rows):
    vectors = rng.standard_normal((rows, {EMBEDDING}), np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
rng = np.random.default_rng(0)
before, start = status("VmHWM"), time.perf_counter()
"""
LISTS = """
images = read_images(sys.argv[1] + "/name_5pts_score.txt", sys.argv[1] + "/face_tid_mid.txt")
similarities(images.landmarks)
report(f"reading both lists of {{len(images.names):,}} images and computing their alignment")
"""
READ = """
pairs = read_pairs(sys.argv[1] + "/template_pair_label.txt", np.arange(1, {templates} + 1, dtype=np.int32))
report(f"reading {{len(pairs.left):,}} pairs, {{pairs.issame.sum():,}} of them genuine")
"""
VERIFY = """
templates = unit({templates})
pairs = read_pairs(sys.argv[1] + "/template_pair_label.txt", np.arange(1, {templates} + 1, dtype=np.int32))
start = time.perf_counter()
scores = pair_scores(templates, pairs.left, pairs.right, Bar())
report("scoring them")
start = time.perf_counter()
roc = Roc(scores, pairs.issame)
tars = [reading(far) for reading in (roc.at_most, roc.nearest) for far in FARS]
curve = roc.curve()
report("TAR at FAR 1e-6 .. 0.1 by both readings, and the curve")
"""
SEARCH = """
for gallery in 1772, 1759:
    identify(unit(19593), unit(gallery), rng.integers(-gallery, gallery, 19593), Bar())
report("1:N of 19,593 probes in both galleries")
"""


def write_pairs(path: Path) -> None:
    """Writes a list of random pairs; the first GENUINE are labeled as genuine."""
    rng = np.random.default_rng(0)
    with open(path, "w") as file:
        for begin in range(0, PAIRS, CHUNK):
            numbers = np.arange(begin, min(begin + CHUNK, PAIRS))
            rows = rng.integers(1, TEMPLATES + 1, (len(numbers), 2)).tolist()
            labels = (numbers < GENUINE).astype(int).tolist()
            file.writelines(f"{left} {right} {label}\n" for (left, right), label in zip(rows, labels))


def write_images(folder: Path) -> None:
    """Writes the two lists of images, twenty per template."""
    rng = np.random.default_rng(0)
    points = rng.uniform(20, 200, (1000, 10)).tolist()
    texts = [" ".join(f"{number:.3f}" for number in row) for row in points]
    names = [f"{number}.jpg" for number in range(1, IMAGES + 1)]
    with open(folder / "name_5pts_score.txt", "w") as file:
        file.writelines(f"{name} {texts[row % 1000]} 0.999\n" for row, name in enumerate(names))
    with open(folder / "face_tid_mid.txt", "w") as file:
        file.writelines(f"{name} {1 + row % TEMPLATES} {row // 3}\n" for row, name in enumerate(names))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_images(Path(folder))
        write_pairs(Path(folder) / "template_pair_label.txt")
        for code in LISTS, READ, VERIFY, SEARCH:
            code = START + code.format(templates=TEMPLATES)
            subprocess.run([sys.executable, "-c", code, folder], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
