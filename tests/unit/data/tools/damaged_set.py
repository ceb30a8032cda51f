"""A small face set to damage, for the tests of `check`."""

import os
from collections import Counter

from partial_fc.data.face_records import write_face_set
from partial_fc.data.synthetic.draw import encode_face
from partial_fc.data.tools.check import SetCheck

SIZES = (3, 4, 2, 5)
IMAGES = sum(SIZES)


def write_sound_set(root):
    """4 identities, 14 images: keys 1 to 14, identity records 15 to 18; returns the path of its train.rec."""
    write_face_set(root, [[encode_face(3, person, image) for image in range(n)] for person, n in enumerate(SIZES)])
    return os.path.join(root, "train.rec")


def problems(rec, fast=False, workers=1):
    """(texts, parts) of what is wrong."""
    found = list(SetCheck(rec, fast, workers).problems())
    return [problem.text for problem in found], Counter(problem.part for problem in found)


def lines_of(rec):
    with open(rec[:-3] + "idx") as file:
        return file.read().splitlines()


def write_lines(rec, lines):
    with open(rec[:-3] + "idx", "w") as file:
        file.write("\n".join(lines) + "\n")


def offsets_of(rec):
    return {int(key): int(offset) for key, offset in (line.split("\t") for line in lines_of(rec))}
