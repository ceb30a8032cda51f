"""In which form a set of images is, by what the setting `rec` names."""

import os
import re
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


def is_name(rec: str) -> bool:
    """Whether `rec` is not a path: an object as package.module:name, or hf:NAME."""
    return rec.startswith(HUB_PREFIX) or OBJECT.fullmatch(rec) is not None


def form_of(rec: str) -> Form:
    """Returns the form of what `rec` names; RECORDS if nothing else is there."""
    if is_name(rec):
        return HUB if rec.startswith(HUB_PREFIX) else DATASET
    if os.path.isfile(os.path.join(rec, "train.rec")) or not os.path.isdir(rec):
        return ENDINGS.get(os.path.splitext(rec)[1], RECORDS)
    with os.scandir(rec) as entries:
        kinds = {entry.name: entry.is_dir() for entry in entries}
    if "dataset_dict.json" in kinds or {"dataset_info.json", "state.json"} <= kinds.keys():
        return SAVED
    endings = {os.path.splitext(name)[1] for name, is_folder in kinds.items() if not is_folder}
    for ending, form in ENDINGS.items():
        if ending in endings:
            return form
    has_folders = any(is_folder for name, is_folder in kinds.items() if not name.startswith("."))
    return FOLDER if has_folders else RECORDS


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
