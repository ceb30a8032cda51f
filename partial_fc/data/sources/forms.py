"""The forms of sets that the setting `rec` can name. Other modules call these functions and never compare forms."""

from __future__ import annotations

import os
import re
from mimetypes import guess_type
from pkgutil import resolve_name
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # needs NumPy, whose absence program.py reports
    from partial_fc.data.image_set import ImageSet

OBJECT = re.compile(r"[^\W\d][\w.]*:[^\W\d][\w.]*")  # package.module:name
HUB_PREFIX = "hf:"  # a data set of the Hugging Face Hub, or a folder that `datasets` loads


class Form(NamedTuple):
    """A form of sets."""

    opener: str  # package.module:name of the function or class that opens a set
    makes_files: bool = False  # the first opening writes an index or a cache, which all processes of a host use


RECORDS = Form("partial_fc.data.face_records:FaceRecords")
FOLDER = Form("partial_fc.data.sources.folders:FolderImages")
SHARDS = Form("partial_fc.data.sources.shards:ShardImages", makes_files=True)
PARQUET = Form("partial_fc.data.sources.arrow:open_parquet", makes_files=True)
SAVED = Form("partial_fc.data.sources.arrow:open_saved")
HUB = Form("partial_fc.data.sources.arrow:open_hub", makes_files=True)
DATASET = Form("partial_fc.data.sources.dataset:DatasetImages")
ENDINGS = {".parquet": PARQUET, ".tar": SHARDS}
# Compressed shards, which are recognized in order to be refused.
COMPRESSED = re.compile(r"\.(?:tar\.(?:gz|bz2|xz|zst|lz4|z)|tgz|tbz2?|txz|tzst)$", re.IGNORECASE)
COLUMNS = re.compile(r"(.*?)#((?:image|label)=.*)", re.DOTALL)


def open_images(rec: str | os.PathLike) -> ImageSet:
    """Opens a set of images in any form.

    Args:
        rec: path of a train.rec, of a folder with a folder per identity, of WebDataset shards (a .tar, a pattern
            such as "shard-{000..009}.tar", or their folder), of Parquet files (likewise), or of a data set saved by
            `datasets`; hf:NAME for a data set that `datasets` loads; package.module:name for a map-style Dataset.

    Raises:
        OSError, ValueError, ImportError: the set cannot be read; the message names it and what to do.
    """
    rec = os.fspath(rec)
    images: ImageSet = resolve_name(form_of(rec).opener)(rec)
    return images


def make_shared_files(rec: str) -> None:
    """Writes the index or cache that the processes of a host share, if this form has one. Raises as open_images."""
    if form_of(rec).makes_files:
        open_images(rec).close()


def is_name(rec: str) -> bool:
    """Whether `rec` is not a path: package.module:name of a Dataset, or hf:NAME."""
    return rec.startswith(HUB_PREFIX) or is_dataset(rec)


def is_dataset(rec: str) -> bool:
    """Whether `rec` is package.module:name, which names a map-style Dataset."""
    return not rec.startswith(HUB_PREFIX) and OBJECT.fullmatch(rec) is not None


def is_record_set(rec: str) -> bool:
    """Whether `rec` is a .rec file, the folder of a train.rec, or is not a set in any other form."""
    return form_of(rec) == RECORDS


def split_columns(rec: str) -> tuple[str, dict[str, str]]:
    """Splits `rec` at ``#image=NAME,label=NAME``; returns the part before it, and the column names by their use."""
    if not (match := COLUMNS.fullmatch(rec)):
        return rec, {}
    return match[1], dict(column.split("=", 1) for column in re.split(",(?=(?:image|label)=)", match[2]))


def ending_of(file: str) -> str:
    """Returns the ending of a file's name in lower case; .tar for compressed shards, too."""
    return ".tar" if COMPRESSED.search(file) else os.path.splitext(file)[1].lower()


def form_of(rec: str) -> Form:
    """Returns the form of a set; RECORDS if there is no set.

    Raises:
        ValueError: a folder without train.rec holds several forms, or `rec` names columns of a form without columns.
    """
    path, columns = split_columns(rec)
    form = _form_of_path(path)
    if columns and form not in (PARQUET, SAVED, HUB):
        raise ValueError(f"{rec} names columns, which {path} does not have: remove them")
    return form


def _form_of_path(rec: str) -> Form:
    if is_name(rec):
        return DATASET if is_dataset(rec) else HUB
    if os.path.isfile(os.path.join(rec, "train.rec")) or not os.path.isdir(rec):
        return ENDINGS.get(ending_of(rec), RECORDS)
    with os.scandir(rec) as entries:
        kinds = {entry.name: entry.is_dir() for entry in entries if not entry.name.startswith(".")}
    if "dataset_dict.json" in kinds or {"dataset_info.json", "state.json"} <= kinds.keys():
        return SAVED
    folders = [name for name, is_folder in kinds.items() if is_folder]
    example_of: dict[Form, str] = {}
    for name in sorted(kinds.keys() - folders):
        if form := {**ENDINGS, ".rec": RECORDS}.get(ending_of(name)):
            example_of.setdefault(form, name)
    for name in folders if example_of else ():
        if any((guess_type(file)[0] or "").startswith("image/") for file in os.listdir(os.path.join(rec, name))):
            example_of[FOLDER] = f"images in {name}"
            break
    if len(example_of) > 1:
        raise ValueError(
            f"{rec} holds several sets ({', '.join(example_of.values())}): name the files to train on, such as "
            f"{os.path.join(rec, '*' + ending_of(next(iter(example_of.values()))))}, or move the others away"
        )
    return next(iter(example_of), FOLDER if folders else RECORDS)


def set_in(folder: str) -> str:
    """Returns the path of the set in a folder: its train.rec, or the folder itself if it holds another form."""
    return os.path.join(folder, "train.rec") if is_record_set(folder) else folder


def set_path(path: str) -> str:
    """Returns the path of a set, where `path` may be its folder."""
    folder, _ = split_columns(path)
    is_folder = os.path.isdir(folder) or not os.path.splitext(folder)[1]
    return set_in(path) if is_folder else path


def set_folder(path: str) -> str:
    """Returns the folder of a set's other files, such as validation sets; `path` is as set_path returns it."""
    path, _ = split_columns(path)
    return path if os.path.isdir(path) else os.path.dirname(path)


def set_name(rec: str) -> str:
    """Returns a short name of the set, for names of folders; empty if it has none."""
    if is_name(rec):
        return split_columns(rec)[0].rstrip("/").rpartition(":")[2].rpartition("/")[2]
    return os.path.basename(set_folder(rec))
