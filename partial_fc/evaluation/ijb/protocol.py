"""IJB-B or IJB-C on the disk, as insightface hands it out.

ROOT/loose_crop/                        the images, faces with some room around
ROOT/meta/ijbc_name_5pts_score.txt      image, five landmarks, detector score
ROOT/meta/ijbc_face_tid_mid.txt         image, template, media; the same images in the same order
ROOT/meta/ijbc_template_pair_label.txt  1:1: template, template, same person or not
ROOT/meta/ijbc_1N_gallery_G1.csv, ijbc_1N_gallery_G2.csv, ijbc_1N_probe_mixed.csv    1:N: template, subject
IJB-B: ijbb instead of ijbc, and galleries S1 and S2.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import numpy as np

from .image_list import ImageList, check_files, read_images
from .pairs import Pairs, read_pairs
from .subjects import SubjectList, read_subjects

GALLERIES = {"IJBB": ("S1", "S2"), "IJBC": ("G1", "G2")}


class Files(NamedTuple):
    """Paths of a protocol's files; `galleries` by name."""

    images: str
    landmarks: str
    media: str
    pairs: str
    galleries: dict[str, str]
    probes: str


class Search(NamedTuple):
    """1:N: the galleries by name, and the probes that all of them are searched for."""

    galleries: dict[str, SubjectList]
    probes: SubjectList


class IjbSet(NamedTuple):
    """A protocol that has been read. `search` is None where the lists for 1:N are absent."""

    target: str
    folder: str
    images: ImageList
    pairs: Pairs
    search: Search | None
    absent: list[str]


def files_of(root: str | os.PathLike, target: str) -> Files:
    """Where the files of `target`, IJBB or IJBC, lie."""
    root = os.fspath(root)
    start = os.path.join(root, "meta", target.lower())
    return Files(
        os.path.join(root, "loose_crop"),
        f"{start}_name_5pts_score.txt",
        f"{start}_face_tid_mid.txt",
        f"{start}_template_pair_label.txt",
        {name: f"{start}_1N_gallery_{name}.csv" for name in GALLERIES[target]},
        f"{start}_1N_probe_mixed.csv",
    )


def find_target(root: str | os.PathLike) -> str:
    """Which protocol lies in a folder. Raises OSError if there is none, ValueError if both are there."""
    there = [target for target in GALLERIES if os.path.exists(files_of(root, target).landmarks)]
    if not there:
        raise FileNotFoundError(
            f"{os.fspath(root)} is no IJB folder: it has neither meta/ijbc_name_5pts_score.txt nor "
            "meta/ijbb_name_5pts_score.txt"
        )
    if len(there) > 1:
        raise ValueError(f"{os.fspath(root)} holds both IJBB and IJBC: say which with --target")
    return there[0]


def read_protocol(root: str | os.PathLike, target: str | None = None) -> IjbSet:
    """Everything but the images; `target` is IJBB, IJBC, or None for the one that is there.

    Raises OSError for files that are missing, images too, and ValueError naming file and line for what is malformed.
    """
    target = target or find_target(root)
    files = files_of(root, target)
    images = read_images(files.landmarks, files.media)
    check_files(files.images, images.names)
    lists = [*files.galleries.values(), files.probes]
    absent = [path for path in lists if not os.path.exists(path)]
    search = None if absent else read_search(files, images)
    return IjbSet(target, files.images, images, read_pairs(files.pairs, images.template_ids), search, absent)


def read_search(files: Files, images: ImageList) -> Search:
    """The lists for 1:N. Raises ValueError for a gallery without any probe's subject, too."""
    galleries = {name: read_subjects(path, images.template_ids, True) for name, path in files.galleries.items()}
    probes = read_subjects(files.probes, images.template_ids, False)
    for name, gallery in galleries.items():
        if not np.isin(probes.subjects, gallery.subjects).any():
            raise ValueError(f"no probe of {files.probes} has its subject in {files.galleries[name]}")
    return Search(galleries, probes)
