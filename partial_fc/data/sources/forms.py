"""In which form a set of images is, by what the setting `rec` names."""

import os
import re
from mimetypes import guess_type
from typing import NamedTuple

OBJECT = re.compile(r"[^\W\d][\w.]*:[^\W\d][\w.]*")  # package.module:name
HUB_PREFIX = "hf:"  # a data set of the Hugging Face Hub, or a folder that `datasets` can load


class Form(NamedTuple):
    """A form of sets."""

    opener: str  # package.module:name of what opens a set, from what `rec` names
    # whether opening one for the first time writes an index or a cache, which all processes of a host use
    makes_files: bool = False


RECORDS = Form("partial_fc.data.face_records:FaceRecords")
FOLDER = Form("partial_fc.data.sources.folders:FolderImages")
SHARDS = Form("partial_fc.data.sources.shards:ShardImages", makes_files=True)
PARQUET = Form("partial_fc.data.sources.arrow:open_parquet", makes_files=True)
SAVED = Form("partial_fc.data.sources.arrow:open_saved")
HUB = Form("partial_fc.data.sources.arrow:open_hub", makes_files=True)
DATASET = Form("partial_fc.data.sources.dataset:DatasetImages")
ENDINGS = {".parquet": PARQUET, ".tar": SHARDS}
# Compressed shards, which opening refuses.
COMPRESSED = re.compile(r"\.(?:tar\.(?:gz|bz2|xz|zst|lz4|z)|tgz|tbz2?|txz|tzst)$", re.IGNORECASE)
COLUMNS = re.compile(r"(.*?)#((?:image|label)=.*)", re.DOTALL)


def is_name(rec: str) -> bool:
    """Whether `rec` is not a path: an object as package.module:name, or hf:NAME."""
    return rec.startswith(HUB_PREFIX) or OBJECT.fullmatch(rec) is not None


def split_columns(rec: str) -> tuple[str, dict[str, str]]:
    """Returns what precedes ``#image=NAME,label=NAME`` in `rec`, and the names of the columns by what they hold."""
    if not (found := COLUMNS.fullmatch(rec)):
        return rec, {}
    return found[1], dict(column.split("=", 1) for column in re.split(",(?=(?:image|label)=)", found[2]))


def ending_of(file: str) -> str:
    """Returns the ending of a file's name in lower case; that of shards also if they are compressed."""
    return ".tar" if COMPRESSED.search(file) else os.path.splitext(file)[1].lower()


def form_of(rec: str) -> Form:
    """Returns the form of what `rec` names; RECORDS if nothing else is there.

    Raises:
        ValueError: a folder without train.rec holds several forms, or `rec` names columns of a form without them.
    """
    path, columns = split_columns(rec)
    form = _form_of_path(path)
    if columns and form not in (PARQUET, SAVED, HUB):
        raise ValueError(f"{rec} names columns, which {path} does not have: remove what follows it")
    return form


def _form_of_path(rec: str) -> Form:
    if is_name(rec):
        return HUB if rec.startswith(HUB_PREFIX) else DATASET
    if os.path.isfile(os.path.join(rec, "train.rec")) or not os.path.isdir(rec):
        return ENDINGS.get(ending_of(rec), RECORDS)
    with os.scandir(rec) as entries:
        kinds = {entry.name: entry.is_dir() for entry in entries if not entry.name.startswith(".")}
    if "dataset_dict.json" in kinds or {"dataset_info.json", "state.json"} <= kinds.keys():
        return SAVED
    folders = [name for name, is_folder in kinds.items() if is_folder]
    found: dict[Form, str] = {}
    for name in sorted(kinds.keys() - folders):
        if form := {**ENDINGS, ".rec": RECORDS}.get(ending_of(name)):
            found.setdefault(form, name)
    if found and (pictured := next((name for name in folders if _has_images(os.path.join(rec, name))), "")):
        found[FOLDER] = f"images in {pictured}"
    if len(found) > 1:
        raise ValueError(
            f"{rec} holds several sets ({', '.join(found.values())}): name the files to train on, such as "
            f"{os.path.join(rec, '*' + ending_of(next(iter(found.values()))))}, or move the others away"
        )
    return next(iter(found), FOLDER if folders else RECORDS)


def _has_images(folder: str) -> bool:
    return any((guess_type(name)[0] or "").startswith("image/") for name in os.listdir(folder))


def set_in(folder: str) -> str:
    """Returns what to read in a folder: its train.rec, or the folder itself if it has another form."""
    return os.path.join(folder, "train.rec") if form_of(folder) == RECORDS else folder


def set_path(path: str) -> str:
    """Returns what to read of a path, which may be that of a folder."""
    folder, _ = split_columns(path)
    is_folder = os.path.isdir(folder) or not os.path.splitext(folder)[1]
    return set_in(path) if is_folder else path


def set_folder(path: str) -> str:
    """Returns the folder of a set's other files, such as validation sets, for what set_path returned."""
    path, _ = split_columns(path)
    return path if os.path.isdir(path) else os.path.dirname(path)


def set_name(rec: str) -> str:
    """Returns a short name of the set for the names of folders; empty if there is none."""
    if is_name(rec):
        return split_columns(rec)[0].rstrip("/").rpartition(":")[2].rpartition("/")[2]
    return os.path.basename(set_folder(rec))
