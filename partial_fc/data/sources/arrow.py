"""Parquet files and data sets of Hugging Face, through the package `datasets`.

Parquet can only be read by groups of rows, so `datasets` writes Parquet files to its cache once (HF_HOME), as Arrow
files, which are mapped into memory and read in any order.

Shapes: N images.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from partial_fc.data.image_set import ImageSet
from partial_fc.data.label_runs import LabelRuns

from .forms import HUB_PREFIX
from .shards import expand_shards

INSTALL = "pip install datasets"


def open_hub(rec: str) -> ImageSet:
    """Opens hf:NAME. See _open."""
    return _open(rec, lambda datasets: datasets.load_dataset(rec.removeprefix(HUB_PREFIX), split="train"))


def open_parquet(rec: str) -> ImageSet:
    """Opens Parquet files. See _open."""
    files = expand_shards(rec, ".parquet")
    return _open(rec, lambda datasets: datasets.Dataset.from_parquet(files))


def open_saved(rec: str) -> ImageSet:
    """Opens a data set that was saved by `save_to_disk`. See _open."""
    return _open(rec, lambda datasets: datasets.load_from_disk(rec))


def _open(rec: str, load: Callable[[Any], Any]) -> ImageSet:
    """Opens what `load` returns, with the module `datasets` as its argument.

    Raises:
        ImportError: `datasets` is not installed.
        OSError, ValueError: it cannot load the set, or there are no images with labels.
    """
    try:
        import datasets
    except ImportError as error:
        raise ImportError(f"{rec} needs the package datasets ({error}): {INSTALL}") from None
    try:
        found = load(datasets)
    except Exception as error:  # its own, of its file formats, of the network
        raise ValueError(f"{rec} cannot be loaded by datasets ({type(error).__name__}: {error})") from error
    if isinstance(found, dict):
        if "train" not in found:
            raise ValueError(f"{rec} has the splits {', '.join(found)}, expected train: save that one alone")
        found = found["train"]
    return ArrowImages(rec, found.data)


class ArrowImages(ImageSet):
    """The images of a pyarrow table, or of one of `datasets`. See ImageSet.

    Images are a column of encoded images, binary or as `datasets.Image`; labels one of integers. If there are several,
    those named image and label.
    """

    advice = "write the set again"

    def __init__(self, path: str, table: Any):
        columns = {name: table.column(name) for name in table.column_names}
        image_columns = [name for name, column in columns.items() if is_image(column.type)]
        label_columns = [name for name, column in columns.items() if str(column.type).startswith(("int", "uint"))]
        images = columns[choose(path, image_columns, "image", "encoded images", columns)]
        labels = columns[choose(path, label_columns, "label", "integer labels", columns)]
        self._files = None
        if "struct" in str(images.type):
            fields = dict(zip((field.name for field in images.type), images.flatten()))
            images, self._files = fields["bytes"], fields.get("path")
        self._images = images
        if not len(labels):
            raise ValueError(f"{path} contains no images")
        if labels.null_count:
            raise ValueError(f"{path} has {labels.null_count} images without a label: remove them")
        numbers = labels.to_numpy().astype(np.int64)
        if numbers.min() < 0:
            raise ValueError(f"{path}: row {int(numbers.argmin())} has label {numbers.min()}, expected 0 or above")
        super().__init__(path, LabelRuns.of_labels(numbers), int(numbers.max()) + 1)

    def read(self, position: int, label: int) -> bytes:
        """See ImageSet."""
        data = self._images[position].as_py()
        if isinstance(data, bytes):
            return data
        file = None if self._files is None else self._files[position].as_py()
        if file is None:
            raise ValueError(f"{self.describe(position)} is empty: {self.advice}")
        try:
            with open(file, "rb", buffering=0) as image:
                return image.read()
        except (FileNotFoundError, PermissionError) as error:
            raise ValueError(f"{self.describe(position)}: {file} cannot be read ({error.strerror})") from None

    def describe(self, position: int) -> str:
        """Names the row of an image."""
        return f"{self.path}: image in row {position}"


def is_image(kind: Any) -> bool:
    """Whether a pyarrow type holds encoded images: binary, or a struct with such a field ``bytes``."""
    return "binary" in str(kind) and ("struct" not in str(kind) or any(field.name == "bytes" for field in kind))


def choose(path: str, names: list[str], preferred: str, what: str, columns: dict) -> str:
    """Returns the only name, or the preferred one. Raises ValueError if it is not clear."""
    if len(names) == 1 or preferred in names:
        return names[0] if len(names) == 1 else preferred
    types = ", ".join(f"{name} ({column.type})" for name, column in columns.items())
    raise ValueError(f"{path} has the columns {types}, expected one of {what}: name it {preferred}")
