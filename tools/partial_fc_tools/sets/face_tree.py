"""Writes aligned faces as a tree of folders, and the list of photos."""

import os
from collections import Counter

from partial_fc.data.image_formats import extension
from partial_fc.utils.tables import CsvWriter
from partial_fc.utils.text import plural

from .detection.detector import LANDMARKS
from .photo_faces import ALIGNED, DAMAGED, FAILED, NO_FACE, TOO_LARGE, AlignedPhoto

SEVERAL, TURNED, FACES = "with several faces", "turned by EXIF", "faces"
COLUMNS = (
    *("photo", "outcome", "reason", "faces", "turned", "file", "score"),
    *(f"{point}_{axis}" for point in LANDMARKS for axis in "xy"),
)


class FaceWriter:
    """Writes faces into folders, and a line of the list for each face, and for each photo without one.

    Attributes:
        counts: numbers of photos by outcome, SEVERAL and TURNED; number of FACES.
        first_reason: why the first photo was damaged, too large or failed; empty without such a photo.
    """

    def __init__(self, folder: str, names: list[str], rows: CsvWriter):
        self.folder, self.rows = folder, rows
        self.stems = Counter(os.path.splitext(name)[0] for name in names)
        self.taken: set[str] = set()
        self.counts: Counter[str] = Counter()
        self.first_reason = ""
        rows.writerow(COLUMNS)

    def add(self, name: str, photo: AlignedPhoto) -> None:
        """Writes the faces and the lines of a photo."""
        self.counts[photo.outcome] += 1
        self.counts[TURNED] += photo.turned
        self.counts[SEVERAL] += photo.num_found > 1
        if photo.reason and not self.first_reason:
            self.first_reason = f"{name} {photo.reason}"
        shared = (name, photo.outcome, photo.reason, photo.num_found, "yes" if photo.turned else "no")
        if not photo.faces:
            self.rows.writerow((*shared, *[""] * (len(COLUMNS) - len(shared))))
        # The face of a.png beside a.jpg is a.png.jpg.
        stem = os.path.splitext(name)[0]
        stem = name if self.stems[stem] > 1 else stem
        for number, (face, encoded) in enumerate(photo.faces, 1):
            path = f"{stem}_{number}" if len(photo.faces) > 1 else stem
            while path in self.taken:  # the first face of a.jpg beside a_1.jpg
                path += "_"
            self.taken.add(path)
            path += extension(encoded)
            os.makedirs(os.path.dirname(os.path.join(self.folder, path)), exist_ok=True)
            with open(os.path.join(self.folder, path), "wb") as file:
                file.write(encoded)
            points = [f"{value:.2f}" for value in face.landmarks.ravel()]
            self.rows.writerow((*shared, path, f"{face.score:.4f}", *points))
            self.counts[FACES] += 1

    def text(self) -> str:
        """Returns the outcome of all photos as text."""
        others = (NO_FACE, DAMAGED, TOO_LARGE, FAILED, SEVERAL, TURNED)
        listed = ", ".join(f"{self.counts[name]:,} {name}" for name in others)
        return f"{plural(self.counts[FACES], 'face')} of {plural(self.counts[ALIGNED], 'photo')}; photos: {listed}"
