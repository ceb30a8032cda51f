"""Files of IJB-B and IJB-C in the layout that insightface distributes.

ROOT/loose_crop/                        images: faces with a margin
ROOT/meta/ijbc_name_5pts_score.txt      image, five landmarks, detector score
ROOT/meta/ijbc_face_tid_mid.txt         image, template, media; the same images in the same order
ROOT/meta/ijbc_template_pair_label.txt  1:1: template, template, 1 for the same person or 0
ROOT/meta/ijbc_1N_gallery_G1.csv, ijbc_1N_gallery_G2.csv, ijbc_1N_probe_mixed.csv    1:N: template, subject
IJB-B: ijbb instead of ijbc, and galleries S1 and S2.
"""

import os
from typing import NamedTuple

import numpy as np

from partial_fc.utils.text import plural

from .lists import ImageList, Pairs, SubjectList, read_images, read_pairs, read_subjects

GALLERIES = {"IJBB": ("S1", "S2"), "IJBC": ("G1", "G2")}


class Files(NamedTuple):
    """Paths of a protocol's files; ``galleries`` by name."""

    images: str
    landmarks: str
    media: str
    pairs: str
    galleries: dict[str, str]
    probes: str


class Search(NamedTuple):
    """Lists for 1:N: the galleries by name, and the probes searched for in each of them."""

    galleries: dict[str, SubjectList]
    probes: SubjectList


class IjbSet(NamedTuple):
    """A protocol without its image contents."""

    target: str  # IJBB or IJBC
    folder: str  # path of the images
    images: ImageList
    pairs: Pairs  # for 1:1
    search: Search | None  # for 1:N; None if its files are missing
    absent: list[str]  # paths of the missing files for 1:N


def files_of(root: str | os.PathLike, target: str) -> Files:
    """Returns the paths of the files of ``target``, IJBB or IJBC."""
    root = os.fspath(root)
    prefix = os.path.join(root, "meta", target.lower())
    return Files(
        os.path.join(root, "loose_crop"),
        f"{prefix}_name_5pts_score.txt",
        f"{prefix}_face_tid_mid.txt",
        f"{prefix}_template_pair_label.txt",
        {name: f"{prefix}_1N_gallery_{name}.csv" for name in GALLERIES[target]},
        f"{prefix}_1N_probe_mixed.csv",
    )


def read_protocol(root: str | os.PathLike, target: str | None = None, detector_score: bool = True) -> IjbSet:
    """Reads all files of a protocol except the images.

    Args:
        root: folder of the protocol.
        target: IJBB or IJBC (default: the one in the folder).
        detector_score: see `read_images`.

    Raises:
        OSError: A file or an image is missing. Images are checked here, before hours of embedding.
        ValueError: A line is invalid (the message names file and line), a gallery has no subject of the probes, or the
            folder has both protocols.
    """
    if target is None:
        targets = [target for target in GALLERIES if os.path.exists(files_of(root, target).landmarks)]
        if not targets:
            raise FileNotFoundError(
                f"{root} is not an IJB folder: it has neither meta/ijbc_name_5pts_score.txt nor "
                "meta/ijbb_name_5pts_score.txt"
            )
        if len(targets) > 1:
            raise ValueError(f"{root} has both IJBB and IJBC: select one with --target")
        target = targets[0]
    files = files_of(root, target)
    images = read_images(files.landmarks, files.media, detector_score)
    listed = set(os.listdir(files.images))  # much faster than a look at each of 469,375 files
    unlisted = [os.path.join(files.images, name) for name in images.names if name not in listed]
    missing = [path for path in unlisted if not os.path.isfile(path)]  # others are in subfolders
    if missing:
        counts = f"{len(missing):,} of {plural(len(images.names), 'image')}"
        raise FileNotFoundError(f"{missing[0]} does not exist; {counts} are missing")
    absent = [path for path in (*files.galleries.values(), files.probes) if not os.path.exists(path)]
    search = None
    if not absent:
        galleries = {name: read_subjects(path, images.template_ids, True) for name, path in files.galleries.items()}
        probes = read_subjects(files.probes, images.template_ids, False)
        for name, gallery in galleries.items():
            if not np.isin(probes.subjects, gallery.subjects).any():
                raise ValueError(f"no probe of {files.probes} has its subject in {files.galleries[name]}")
        search = Search(galleries, probes)
    return IjbSet(target, files.images, images, read_pairs(files.pairs, images.template_ids), search, absent)
