"""Opens a set of images in any form."""

import os

from partial_fc.data.face_records import FaceRecords
from partial_fc.data.image_set import ImageSet

from . import forms


def open_images(rec: str | os.PathLike) -> ImageSet:
    """Opens what `rec` names.

    Args:
        rec: path of a train.rec, of a folder with a folder for each identity, of WebDataset shards (a .tar, a pattern
            of them such as "shard-{000..009}.tar", or their folder), of Parquet files (likewise), or of a data set
            that `datasets` has saved; hf:NAME for one that `datasets` loads; package.module:name for a Dataset.

    Raises:
        OSError, ValueError, ImportError: the set cannot be read; names it and what to do.
    """
    rec = os.fspath(rec)
    if rec.startswith(forms.HUB) or (not forms.is_name(rec) and forms.form_of(rec) in (forms.PARQUET, forms.SAVED)):
        from .arrow import open_arrow

        return open_arrow(rec)
    if forms.is_name(rec):
        from .dataset import DatasetImages

        return DatasetImages(rec)
    form = forms.form_of(rec)
    if form == forms.SHARDS:
        from .shards import ShardImages

        return ShardImages(rec)
    if form == forms.FOLDER:
        from .folders import FolderImages

        return FolderImages(rec)
    return FaceRecords(rec)
