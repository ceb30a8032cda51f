"""Writes the cleaned set.

Shapes: N images, C classes of the old set, K of the new one.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from partial_fc.data.face_records import FaceRecords, write_face_set
from partial_fc.data.names import names_of, write_names
from partial_fc_tools.sets.source import image_size_of

from .centers import Classes

CLASS_MAP = "class_map.txt"


def write_set(stage: str, records: FaceRecords, classes: Classes, after: np.ndarray, bar: Any) -> tuple[int, int]:
    """Writes train.rec, train.idx, property, identities.txt and class_map.txt into the folder ``stage``.

    The classes that have images keep their order; within a class images keep that of the old set. ``after``: (N,)
    int64, the class row of each image in the new set, -1 for none; ``bar`` counts written images. Returns the numbers
    of images and classes. Raises ValueError if no image is left.
    """
    kept = np.flatnonzero(after >= 0)
    if not len(kept):
        raise ValueError("no image would be left: change the limits, or use another model")
    new = Classes.of(after[kept])

    def images_of(begin: int, end: int) -> Iterator[bytes]:
        for position in kept[new.order[begin:end]].tolist():
            yield records.read_image(position)[0]
            bar.update(1)

    counts = write_face_set(stage, map(images_of, new.bounds[:-1], new.bounds[1:]), image_size_of(records))
    labels = classes.names[new.names]
    write_names(stage, names_of(records.rec_path, labels, records.num_identities))
    Path(stage, CLASS_MAP).write_text("".join(f"{label}\n" for label in labels), encoding="ascii")
    return counts
