"""Opens a set of images in any form."""

import os
from pkgutil import resolve_name

from partial_fc.data.image_set import ImageSet

from .forms import form_of


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
    images: ImageSet = resolve_name(form_of(rec).opener)(rec)
    return images
