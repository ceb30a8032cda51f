"""A folder with a folder of images per identity.

Positions and labels are as in `partial-fc sets pack`: identities are sorted by name, and so are the files of each.

Shapes: N images, C identities.
"""

import os

import numpy as np

from partial_fc.data.folder import identity_folders, list_folder, no_images
from partial_fc.data.image_set import ImageSet
from partial_fc.data.label_runs import LabelRuns
from partial_fc.utils.regular_files import require_links_inside


class FolderImages(ImageSet):
    """The images of such a folder, which is listed once. See ImageSet.

    The memory per image is its file name and 8 bytes.

    Attributes:
        folders: names of the C folders.

    Raises:
        OSError, ValueError: the folder cannot be listed, or an identity's folder has no images or contains folders.
    """

    advice = "fix or remove it"

    def __init__(self, root: str):
        self.folders, others = identity_folders(root)
        self.left_out = [os.path.join(root, name) for name in others]
        counts, names = [], []
        for folder in self.folders:
            path = os.path.join(root, folder)
            content = list_folder(path)
            if content.folders:
                inner = os.path.join(path, content.folders[0])
                raise ValueError(f"{inner} is a folder inside an identity's folder: move it up")
            if not content.images:
                raise no_images(path, content.others)
            require_links_inside([os.path.join(path, name) for name in sorted(content.links)], root)
            self.left_out += (os.path.join(path, name) for name in content.others)
            counts.append(len(content.images))
            names += [os.fsencode(name) for name in content.images]
        starts, self._names = np.cumsum([0, *counts]), b"".join(names)
        self._ends = np.cumsum([0, *map(len, names)])
        super().__init__(root, LabelRuns(starts[:-1], np.arange(len(counts)), int(starts[-1])), len(counts))

    def read(self, position: int, label: int) -> bytes:
        """See ImageSet."""
        return self.read_file(self.describe(position), self.path)

    def describe(self, position: int) -> str:
        """See ImageSet; the path of the image."""
        name = os.fsdecode(self._names[self._ends[position] : self._ends[position + 1]])
        return os.path.join(self.path, self.folders[int(self.labels(position))], name)
