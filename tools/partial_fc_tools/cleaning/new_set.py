"""Writes the cleaned set and the list of changes.

Shapes: N images, C classes of the old set.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from partial_fc.data.face_records import FaceRecords, write_face_set
from partial_fc.data.names import names_of, write_names
from partial_fc.utils.progress import progress
from partial_fc.utils.tables import CsvWriter
from partial_fc_tools.sets.source import image_size_of

from .centers import Classes
from .changes import DUPLICATE, REASONS, REMOVED, TEST_IMAGE, TEST_PERSON
from .find import Findings

CLASS_MAP, CHANGES = "class_map.txt", "changes.csv"


def write_set(stage: str, records: FaceRecords, classes: Classes, rows: np.ndarray) -> tuple[int, int]:
    """Writes train.rec, train.idx, property, identities.txt and class_map.txt into the folder ``stage``.

    Classes that have images keep their order, and so do the images of a class.

    Args:
        stage: the folder.
        records, classes: the old set.
        rows: (N,) int64, the class row of each image in the new set, REMOVED for none.

    Returns:
        Numbers of images and classes.

    Raises:
        ValueError: no image is left.
    """
    kept = np.flatnonzero(rows >= 0)
    if not len(kept):
        raise ValueError("no image would be left: change the limits, or use another model")
    new = Classes.of(rows[kept])

    with progress(len(kept), "image", "writing") as bar:

        def images_of(begin: int, end: int) -> Iterator[bytes]:
            for position in kept[new.order[begin:end]].tolist():
                yield records.read_image(position)[0]
                bar.update(1)

        counts = write_face_set(stage, map(images_of, new.bounds[:-1], new.bounds[1:]), image_size_of(records))
    labels = classes.labels[new.labels]
    write_names(stage, names_of(records.rec_path, labels, records.num_identities))
    Path(stage, CLASS_MAP).write_text("".join(f"{label}\n" for label in labels), encoding="ascii")
    return counts


def write_changes(stage: str, records: FaceRecords, findings: Findings) -> None:
    """Writes changes.csv: a line for each image that changes, in the order of the set.

    ``class`` and ``new_class`` are labels of the old set, the latter empty for a removed image; ``own`` and ``near``
    are cosines; ``other`` is what the image is near: a class, the key of an image, or a test image.
    """
    changes, labels = findings.changes, findings.classes.labels
    changed = np.flatnonzero(changes.reasons)
    with open(os.path.join(stage, CHANGES), "w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        writer = CsvWriter(file)
        writer.writerow(("key", "class", "new_class", "reason", "own", "near", "other"))
        for image, key in zip(changed.tolist(), records.keys(changed).tolist()):
            row, reason, other = changes.new_rows[image], int(changes.reasons[image]), int(changes.other[image])
            if reason == DUPLICATE:
                what = f"key {records.keys([other])[0]}"
            elif reason in (TEST_IMAGE, TEST_PERSON):
                what = findings.test_name(other)
            else:
                what = "" if other < 0 else f"class {labels[other]}"
            cosines = (
                f"{value:.4f}" if np.isfinite(value) else ""
                for value in (findings.fit.statistics.own_cosine[image], changes.near[image])
            )
            new_class = "" if row == REMOVED else labels[row]
            old_class = labels[findings.classes.class_of[image]]
            writer.writerow((key, old_class, new_class, REASONS[reason], *cosines, what))
