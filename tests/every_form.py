"""Trains on one set in every form, with a kill and a resume:  python tests/every_form.py FOLDER [TRAIN_REC]

Ends with an error unless every form gives the same trained bytes as train.rec. The set is drawn in FOLDER, or read from
TRAIN_REC. The trainings are forks of this process, because importing PyTorch takes longest.
"""

import os
import sys
import time
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "1"}  # the latter is for with_fault.py

import matplotlib.figure  # noqa: E402, F401  what a training imports
import torch._dynamo  # noqa: E402, F401

import default  # noqa: E402
import image_forms  # noqa: E402
from commands.with_fault import after_update, kill  # noqa: E402
from partial_fc.data.face_records import FaceRecords  # noqa: E402
from partial_fc.training import checkpointing  # noqa: E402
from partial_fc.training.trainer import train  # noqa: E402
from partial_fc_torch.build import TorchFramework  # noqa: E402

SETTINGS = {
    **{
        "batch_size": 8,
        "max_update": 6,
        "network": "small",
        "embedding_size": 32,
        "lr_steps": [5],
        "trackers": "jsonl",
    },
    **{"verify_every": 100, "save_every": 100, "checkpoint_every": 2, "checkpoints_kept": 5},
}
TRAINED = ("backbone.npz", "centers-00000.npy", "momentum-00000.npy")
KILLED = 9  # the exit status of a child


def in_child(work, *arguments, **named):
    """Does some work in a child process and returns the child's wait status."""
    child = os.fork()
    if not child:
        work(*arguments, **named)
        os._exit(0)
    return os.waitpid(child, 0)[1]


def train_on(rec, output, killed=False, **changes):
    """Trains to the end, or kills its process after update 3."""
    if killed:
        checkpointing.free_memory = lambda: 0  # so that no checkpoint is written in the background
        after_update(3, lambda: kill_once_saved(output / "checkpoints" / "step-0000000002"))
    changes = {**SETTINGS, "rec": rec, "output": str(output), **changes}
    train(default.generate_config(changes=changes, trainer="torch"), TorchFramework())


def kill_once_saved(checkpoint):
    while not (checkpoint / "manifest.json").exists():
        time.sleep(0.01)
    kill()


def trained(output):
    return [(output / "checkpoints" / "step-0000000006" / name).read_bytes() for name in TRAINED]


def images_of(rec):
    """Returns encoded images by identity."""
    records, people = FaceRecords(rec), []
    for position in range(records.num_images):
        label = int(records.labels(position))
        people += [[] for _ in range(label + 1 - len(people))]
        people[label].append(records.read(position, label))
    return people, records.image_size


def write(form, folder, people):
    """Writes a set, and its `rec` setting to a text file; in a child, as threads of `datasets` do not survive forks."""
    (folder / f"{form}.txt").write_text(image_forms.FORMS[form](folder / form, people))


def main(folder, rec=None):
    """Runs everything."""
    folder = Path(folder)
    folder.mkdir(exist_ok=True)
    people, size = images_of(rec) if rec else (image_forms.draw((8,) * 10), image_forms.SIZE)
    image_forms.SIZE, sizes = size, {"num_classes": len(people), "image_size": size[0]}
    os.environ["HF_HOME"] = str(folder / "cache")
    sys.path.insert(0, str(folder / "dataset"))
    rec = image_forms.write_records(folder / "expected", people)
    assert in_child(train_on, rec, folder / "out", **sizes) == 0
    for form in image_forms.FORMS:
        output, processes = folder / f"{form}-out", 2 * (form == "dataset")
        assert in_child(write, form, folder, people) == 0
        rec = (folder / f"{form}.txt").read_text()
        assert in_child(train_on, rec, output, killed=True, decode_processes=processes, **sizes) == KILLED, form
        assert in_child(train_on, rec, output, resume="auto", **sizes) == 0, form
        assert trained(output) == trained(folder / "out") and not list(output.glob("earlier*")), form
        print(form, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
