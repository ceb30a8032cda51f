"""Writes a small protocol of synthetic faces in the layout of IJB-B and IJB-C, to try an evaluation without their data.

Every subject has one gallery template and several probe templates, of photos and of videos with a few frames. Each
gallery contains half of the subjects, so half of the probes have no mate in it. 1:1 compares every gallery template
with every probe. None of the persons is in the demo data set. Images are rotated, shifted and scaled, so a model needs
the alignment. --framing selects the landmarks: "face" puts them on eyes, nose and mouth, as in IJB; "demo" puts them
where alignment produces the framing of the demo data set, for models trained on it.

Shapes: N images.
"""

import argparse
import os
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

import cv2
import numpy as np

from partial_fc.data.synthetic.dataset import HELD_OUT_START
from partial_fc.data.synthetic.draw import draw_face, face_landmarks
from partial_fc.data.synthetic.nuisance import draw_nuisance
from partial_fc.data.synthetic.writer import draw_all
from partial_fc.utils.cli import add_seed, add_workers, run_module, start, whole_number
from partial_fc.utils.staging import staged_folder
from partial_fc.utils.text import plural, say
from partial_fc_tools.sets.alignment import ARCFACE, SIZE

from .protocol import GALLERIES, files_of

EXAMPLE = "/tmp/IJBC --subjects 40"
SIDE = 160  # pixels, width and height of an image
FRAMINGS = ("face", "demo")
GALLERY_MEDIA, PROBE_MEDIA, FRAMES = (3, 5), (1, 3), (1, 4)  # min, max: media of a template, frames of a video
PROBES = (2, 4)  # min, max: probe templates of a subject
VIDEOS = 0.4  # fraction of the media
MAX_ROTATION, SCALES, MAX_SHIFT = 0.6, (0.65, 0.95), 12.0  # radians; factors; pixels


class Image(NamedTuple):
    """An image; ``number`` counts the images of the subject, ``transform`` (2, 3) is applied to the face."""

    name: str
    subject: int
    number: int
    template: int
    media: int
    transform: np.ndarray


class Plan(NamedTuple):
    """The content of a protocol; ``galleries`` and ``probes`` consist of (template, subject)."""

    images: list[Image]
    galleries: list[list[tuple[int, int]]]
    probes: list[tuple[int, int]]


def draw_plan(subjects: int, seed: int) -> Plan:
    """Draws the templates and their images. Template ids are shuffled, so their order reveals nothing."""
    rng = np.random.default_rng(seed)
    probes_each = rng.integers(PROBES[0], PROBES[1] + 1, subjects)
    template_ids = iter((1 + rng.permutation(int(subjects + probes_each.sum()))).tolist())
    plan = Plan([], [[], []], [])
    media = 0
    for subject in range(subjects):
        ranges = [GALLERY_MEDIA, *[PROBE_MEDIA] * int(probes_each[subject])]
        number = 0
        for position, (low, high) in enumerate(ranges):
            template = next(template_ids)
            (plan.probes if position else plan.galleries[subject % 2]).append((template, subject))
            for _ in range(rng.integers(low, high + 1)):
                media += 1
                frames = rng.integers(FRAMES[0], FRAMES[1] + 1) if rng.random() < VIDEOS else 1
                for _ in range(frames):
                    name = f"{len(plan.images) + 1}.jpg"
                    plan.images.append(Image(name, subject, number, template, media, draw_transform(rng)))
                    number += 1
    return plan


def draw_transform(rng: np.random.Generator) -> np.ndarray:
    """Returns (2, 3) float64: a random rotation and scale about the center of an image, and a shift."""
    angle, scale = rng.uniform(-MAX_ROTATION, MAX_ROTATION), rng.uniform(*SCALES)
    a, b = scale * np.cos(angle), scale * np.sin(angle)
    rotation = np.array([[a, -b], [b, a]])
    center = np.full(2, SIDE / 2)
    return np.column_stack([rotation, center - rotation @ center + rng.uniform(-MAX_SHIFT, MAX_SHIFT, 2)])


def draw_image(seed: int, framing: str, image: Image) -> tuple[bytes, np.ndarray, float]:
    """Returns a JPEG, its landmarks (5, 2) in pixels and its detector score, which is lower for a blurred image."""
    person = HELD_OUT_START + image.subject
    picture = draw_face(seed, person, image.number, SIDE)
    points = ARCFACE * (SIDE / SIZE) if framing == "demo" else face_landmarks(seed, person, image.number, SIDE)
    transformed = cv2.warpAffine(picture, image.transform, (SIDE, SIDE), borderMode=cv2.BORDER_REFLECT)
    nuisance = draw_nuisance(seed, person, image.number)
    success, encoded = cv2.imencode(".jpg", transformed[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, int(nuisance.jpeg)])
    assert success
    landmarks = points @ image.transform[:, :2].T + image.transform[:, 2]
    return encoded.tobytes(), landmarks, 1 - 0.1 * nuisance.blur


def write_protocol(root: str, subjects: int, seed: int, target: str, framing: str, workers: int) -> Plan:
    """Writes a protocol into the folder ``root``, which appears only when it is complete.

    Raises OSError if the folder is not empty, or cannot be written.
    """
    plan = draw_plan(subjects, seed)
    with staged_folder(root) as stage:
        files = files_of(stage, target)
        os.makedirs(files.images)
        os.makedirs(os.path.dirname(files.pairs))
        landmarks = []
        drawn = draw_all(partial(draw_image, seed, framing), plan.images, workers)
        for image, (encoded, points, score) in zip(plan.images, drawn):
            with open(os.path.join(files.images, image.name), "wb") as file:
                file.write(encoded)
            landmarks.append(" ".join([image.name, *(f"{number:.3f}" for number in (*points.ravel(), score))]))
        write_lines(files.landmarks, landmarks)
        write_lines(files.media, (f"{image.name} {image.template} {image.media}" for image in plan.images))
        gallery_templates = sorted(plan.galleries[0] + plan.galleries[1])
        pairs = ((left, right) for left in gallery_templates for right in sorted(plan.probes))
        write_lines(files.pairs, (f"{left[0]} {right[0]} {int(left[1] == right[1])}" for left, right in pairs))
        # Like the official lists, these have a heading and a line per image.
        for path, members in zip((*files.galleries.values(), files.probes), (*plan.galleries, plan.probes)):
            ids = {template for template, _ in members}
            rows = [f"{image.template},{image.subject},{image.name}" for image in plan.images if image.template in ids]
            write_lines(path, ["TEMPLATE_ID,SUBJECT_ID,FILENAME", *rows])
    return plan


def write_lines(path: str, lines: Iterable[str]) -> None:
    """Writes a text file."""
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("root", metavar="ROOT", help="folder to create")
    parser.add_argument("--subjects", type=whole_number(4), default=40, help="number of persons (default: 40)")
    parser.add_argument("--target", choices=sorted(GALLERIES), default="IJBC", help="protocol (default: IJBC)")
    parser.add_argument(
        "--framing", choices=FRAMINGS, default="face", help="position of the landmarks, see above (default: face)"
    )
    add_seed(parser)
    add_workers(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    plan = write_protocol(args.root, args.subjects, args.seed, args.target, args.framing, args.workers)
    templates = args.subjects + len(plan.probes)
    pairs = plural(args.subjects * len(plan.probes), "pair")
    say(f"{args.root}: {args.target}, {plural(len(plan.images), 'image')}, {plural(templates, 'template')}, {pairs}")
    return 0


if __name__ == "__main__":
    start(lambda: run_module("partial_fc_tools.ijb.synthetic", "python -m partial_fc_tools.ijb.synthetic"))
