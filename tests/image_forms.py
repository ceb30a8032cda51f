"""One set of images in every form that `rec` can name."""

import io
import os
import tarfile
from pathlib import Path

import cv2
import numpy as np

from partial_fc.data.face_records import write_face_set

SIZE = (16, 16)
COUNTS = (3, 2, 4, 5, 2, 4)  # images of each identity: 20 in all


def draw(counts=COUNTS, size=SIZE):
    """Encoded images by identity."""
    rng = np.random.default_rng(0)
    return [
        [cv2.imencode(".png", rng.integers(0, 256, (*size, 3), np.uint8))[1].tobytes() for _ in range(count)]
        for count in counts
    ]


def write_folders(root, identities):
    for label, images in enumerate(identities):
        folder = Path(root, f"{label:03}")
        folder.mkdir(parents=True)
        for number, image in enumerate(images):
            (folder / f"{number:03}.png").write_bytes(image)
    return str(root)


def write_shard(path, samples):
    """Writes a tar file of {file name: content}, or of pairs; the content None is a link to the first file."""
    Path(path).parent.mkdir(exist_ok=True)
    samples = list(samples.items() if isinstance(samples, dict) else samples)
    with tarfile.open(path, "w") as tar:
        for name, content in samples:
            member = tarfile.TarInfo(name)
            if content is None:
                member.type, member.linkname, content = tarfile.LNKTYPE, samples[0][0], b""
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def write_shards(root, identities, each=8):
    files = [(image, b"%d" % label) for label, images in enumerate(identities) for image in images]
    for shard, start in enumerate(range(0, len(files), each)):
        samples = {}
        for number, (image, label) in enumerate(files[start : start + each]):
            samples |= {f"{number:04}.png": image, f"{number:04}.json": b"{}", f"{number:04}.cls": label}
        write_shard(Path(root, f"faces-{shard:03}.tar"), samples)
    return str(Path(root, f"faces-{{000..{shard:03}}}.tar"))


def hugging_face(identities):
    """Returns a Dataset of the package `datasets`."""
    import datasets

    datasets.disable_progress_bars()
    images = [{"bytes": image, "path": None} for images in identities for image in images]
    labels = np.repeat(np.arange(len(identities)), [len(images) for images in identities]).tolist()
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    return datasets.Dataset.from_dict({"image": images, "label": labels}, features=features)


def write_parquet(root, identities):
    Path(root).mkdir()
    hugging_face(identities).to_parquet(str(Path(root, "train-0.parquet")))
    return str(root)


def write_saved(root, identities):
    hugging_face(identities).save_to_disk(str(root))
    return str(root)


DATASET = '''
from pathlib import Path
import cv2

class Faces:
    """A map-style Dataset of RGB tensors, or of what `as_item` makes of them."""

    def __init__(self):
        self.files = sorted(Path({root!r}).glob("*/*.png"))
        self.targets = [int(path.parent.name) for path in self.files]

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        image = cv2.imread(str(self.files[index]), cv2.IMREAD_COLOR_RGB)
        return image.transpose(2, 0, 1), self.targets[index]
'''


def write_dataset(root, identities):
    """Writes a module with a Dataset and returns its name; the folder must be in sys.path."""
    Path(root).mkdir()
    write_folders(Path(root, "files"), identities)
    name = f"faces_{Path(root).name}"
    Path(root, f"{name}.py").write_text(DATASET.format(root=str(Path(root, "files"))))
    return f"{name}:Faces"


def write_records(root, identities):
    write_face_set(str(root), identities, SIZE)
    return str(Path(root, "train.rec"))


# PLAIN forms need no further packages.
PLAIN = {"records": write_records, "folders": write_folders, "shards": write_shards, "dataset": write_dataset}
FORMS = {**PLAIN, "parquet": write_parquet, "saved": write_saved}


def write_slow_images(folder, count, side=3000):
    """Writes an image that is slow to decode, and hard links to it."""
    first = folder / "slow0.jpg"
    first.write_bytes(cv2.imencode(".jpg", np.zeros((side, side, 3), np.uint8))[1].tobytes())
    for number in range(1, count):
        os.link(first, folder / f"slow{number}.jpg")
