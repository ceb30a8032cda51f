"""The words for the images and classes of a set: aligned faces and people, or images and classes."""

from typing import NamedTuple

FACE_SETS = ("demo", "emore", "glint360k", "ms1m", "webface")  # beginnings of their names in `dataset`


class Words(NamedTuple):
    """The words for a set."""

    images: str
    one_class: str
    classes: str

    @property
    def kinds(self) -> tuple[str, str]:
        """The two kinds of pairs."""
        return f"same {self.one_class}", f"different {self.classes}"


FACES = Words("aligned faces", "person", "people")
OTHERS = Words("images", "class", "classes")


def words_of(task: str, dataset: str) -> Words:
    """Returns the words for the set of a training, from its settings ``task`` and ``dataset``.

    The task ``faces`` also trains on other images: only the sets in FACE_SETS are known to show faces.
    """
    return FACES if task == "faces" and dataset.startswith(FACE_SETS) else OTHERS
