"""In which form a set of images is, by what the setting `rec` names."""

import os
import re

OBJECT = re.compile(r"[^\W\d][\w.]*:[^\W\d][\w.]*")  # package.module:name
HUB = "hf:"  # a data set of the Hugging Face Hub, or a folder that `datasets` can load
RECORDS, FOLDER, SHARDS, PARQUET, SAVED = "train.rec", "folder", "shards", "Parquet", "saved"  # the forms with a path
ENDINGS = {".rec": RECORDS, ".tar": SHARDS, ".parquet": PARQUET}


def is_name(rec: str) -> bool:
    """Whether `rec` is not a path: an object as package.module:name, or hf:NAME."""
    return rec.startswith(HUB) or OBJECT.fullmatch(rec) is not None


def form_of(path: str) -> str:
    """Returns the form of the set at a path; RECORDS if nothing else is there."""
    if os.path.isfile(os.path.join(path, "train.rec")) or not os.path.isdir(path):
        return ENDINGS.get(os.path.splitext(path)[1], RECORDS)
    with os.scandir(path) as entries:
        kinds = {entry.name: entry.is_dir() for entry in entries}
    if "dataset_dict.json" in kinds or {"dataset_info.json", "state.json"} <= kinds.keys():
        return SAVED
    endings = {os.path.splitext(name)[1] for name, is_folder in kinds.items() if not is_folder}
    for ending in (".parquet", ".tar"):
        if ending in endings:
            return ENDINGS[ending]
    has_folders = any(is_folder for name, is_folder in kinds.items() if not name.startswith("."))
    return FOLDER if has_folders else RECORDS


def makes_files(rec: str) -> bool:
    """Whether opening the set for the first time writes an index or a cache, which all processes of a host use."""
    return rec.startswith(HUB) or (not is_name(rec) and form_of(rec) in (SHARDS, PARQUET))


def set_in(folder: str) -> str:
    """Returns what to read in a folder: its train.rec, or the folder itself if it has another form."""
    return os.path.join(folder, "train.rec") if form_of(folder) == RECORDS else folder


def set_path(path: str) -> str:
    """Returns what to read of a path, which may be that of a folder."""
    is_folder = os.path.isdir(path) or not os.path.splitext(path)[1]
    return set_in(path) if is_folder else path


def set_folder(path: str) -> str:
    """Returns the folder of a set's other files, such as validation sets, for what set_path returned."""
    return path if os.path.isdir(path) else os.path.dirname(path)


def set_name(rec: str) -> str:
    """Returns a short name of the set for the names of folders; empty if there is none."""
    if is_name(rec):
        return rec.rstrip("/").rpartition(":")[2].rpartition("/")[2]
    return os.path.basename(set_folder(rec))
