"""A small protocol of drawn faces in the layout of IJB-B and IJB-C, to try an evaluation without the real ones.

Every subject has one gallery template and some probe templates, of photos and of videos with a few frames. Half of the
subjects are in each gallery, so half of the probes have no mate in it. 1:1 compares every gallery template with every
probe. The people are none of the embedded data set's. Pictures are turned, moved and scaled, so that a model sees
little without alignment. --framing says where the landmarks lie: "face", on the eyes, the nose and the mouth, as in
the real ones; "demo", where they bring the face to the place it has in the embedded data set, which models that
were trained on that have seen.

Shapes: N images.
"""

from __future__ import annotations

import argparse
import csv
import os
from collections.abc import Iterator
from typing import NamedTuple

import cv2
import numpy as np

from partial_fc.data.synthetic.dataset import HELD_OUT_START
from partial_fc.data.synthetic.draw import draw_face
from partial_fc.data.synthetic.landmarks import face_landmarks
from partial_fc.data.synthetic.nuisance import draw_nuisance
from partial_fc.utils.cli import add_seed, add_workers, run_command, start, whole_number
from partial_fc.utils.process_pool import ordered_map
from partial_fc.utils.progress import progress
from partial_fc.utils.staging import staged_folder
from partial_fc.utils.text import plural

from .alignment import ARCFACE, SIZE
from .protocol import GALLERIES, files_of

SIDE = 160  # pixels of a picture
FRAMINGS = ("face", "demo")
GALLERY_MEDIA, PROBE_MEDIA, FRAMES = (3, 5), (1, 3), (1, 4)  # from, to: media of a template, frames of a video
PROBES = (2, 4)  # of a subject
VIDEOS = 0.4  # share of the media
TURN, ZOOM, MOVE = 0.6, (0.65, 0.95), 12.0  # radians either way; times; pixels either way


class Image(NamedTuple):
    """A picture: `number` among those of its subject, and the `move` (2, 3) of the drawn picture."""

    subject: int
    number: int
    template: int
    media: int
    move: np.ndarray


class Plan(NamedTuple):
    """`galleries` and `probes`: (template, subject) of each."""

    images: list[Image]
    galleries: list[list[tuple[int, int]]]
    probes: list[tuple[int, int]]


def draw_plan(subjects: int, seed: int) -> Plan:
    """Who is in which template. Ids are shuffled, as in the real protocols nothing follows from their order."""
    rng = np.random.default_rng(seed)
    probes_each = rng.integers(PROBES[0], PROBES[1] + 1, subjects)
    template_ids = iter((1 + rng.permutation(int(subjects + probes_each.sum()))).tolist())
    plan = Plan([], [[], []], [])
    media = 0
    for subject in range(subjects):
        ranges = [GALLERY_MEDIA, *[PROBE_MEDIA] * int(probes_each[subject])]
        number = 0
        for turn, (low, high) in enumerate(ranges):
            template = next(template_ids)
            (plan.probes if turn else plan.galleries[subject % 2]).append((template, subject))
            for _ in range(rng.integers(low, high + 1)):
                media += 1
                frames = rng.integers(FRAMES[0], FRAMES[1] + 1) if rng.random() < VIDEOS else 1
                for _ in range(frames):
                    plan.images.append(Image(subject, number, template, media, draw_move(rng)))
                    number += 1
    return plan


def draw_move(rng: np.random.Generator) -> np.ndarray:
    """(2, 3) float64: a random turn and zoom about the middle of a picture, and a shift."""
    angle, zoom = rng.uniform(-TURN, TURN), rng.uniform(*ZOOM)
    a, b = zoom * np.cos(angle), zoom * np.sin(angle)
    turn = np.array([[a, -b], [b, a]])
    middle = np.full(2, SIDE / 2)
    return np.column_stack([turn, middle - turn @ middle + rng.uniform(-MOVE, MOVE, 2)])


class Task(NamedTuple):
    """What a drawing process is told."""

    seed: int
    framing: str
    image: Image


def draw_image(task: Task) -> tuple[bytes, np.ndarray, float]:
    """The JPEG file, its landmarks (5, 2) in pixels and its detector score, which is lower for a blurred picture."""
    image = task.image
    person = HELD_OUT_START + image.subject
    picture = draw_face(task.seed, person, image.number, SIDE)
    if task.framing == "face":
        points = face_landmarks(task.seed, person, image.number, SIDE)
    else:
        points = ARCFACE * (SIDE / SIZE)
    moved = cv2.warpAffine(picture, image.move, (SIDE, SIDE), borderMode=cv2.BORDER_REFLECT)
    how = draw_nuisance(task.seed, person, image.number)
    done, encoded = cv2.imencode(".jpg", moved[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, int(how.jpeg)])
    assert done
    return encoded.tobytes(), points @ image.move[:, :2].T + image.move[:, 2], 1 - 0.1 * how.blur


def write_protocol(root: str, subjects: int, seed: int, target: str, framing: str, workers: int) -> Plan:
    """Draw and write a protocol into the folder `root`, which appears when it is whole.

    Raises OSError if the folder is there and not empty, or cannot be written.
    """
    plan = draw_plan(subjects, seed)
    with staged_folder(root) as stage:
        files = files_of(stage, target)
        os.makedirs(files.images)
        os.makedirs(os.path.dirname(files.pairs))
        write_images(files.images, files.landmarks, plan, seed, framing, workers)
        write_lines(files.media, (f"{name} {image.template} {image.media}" for name, image in named(plan)))
        everyone = sorted(plan.galleries[0] + plan.galleries[1])
        pairs = ((left, right) for left in everyone for right in sorted(plan.probes))
        write_lines(files.pairs, (f"{left[0]} {right[0]} {int(left[1] == right[1])}" for left, right in pairs))
        for path, gallery in zip(files.galleries.values(), plan.galleries):
            write_subjects(path, plan, gallery)
        write_subjects(files.probes, plan, plan.probes)
    return plan


def named(plan: Plan) -> Iterator[tuple[str, Image]]:
    """Every image with its name."""
    return ((f"{number}.jpg", image) for number, image in enumerate(plan.images, start=1))


def write_images(folder: str, landmarks_path: str, plan: Plan, seed: int, framing: str, workers: int) -> None:
    """The pictures and the list of their landmarks."""
    tasks = (Task(seed, framing, image) for image in plan.images)
    drawn = ordered_map(draw_image, tasks, workers)
    lines = []
    with progress(len(plan.images), "image", "drawing") as bar:
        for (name, _), (_, (encoded, points, score)) in zip(named(plan), drawn):
            with open(os.path.join(folder, name), "wb") as file:
                file.write(encoded)
            lines.append(" ".join([name, *(f"{number:.3f}" for number in points.ravel()), f"{score:.3f}"]))
            bar.update()
    write_lines(landmarks_path, lines)


def write_subjects(path: str, plan: Plan, templates: list[tuple[int, int]]) -> None:
    """A list of templates as the official ones: a header, and a line for every image."""
    subject_of = dict(templates)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["TEMPLATE_ID", "SUBJECT_ID", "FILENAME"])
        for name, image in named(plan):
            if image.template in subject_of:
                writer.writerow([image.template, subject_of[image.template], name])


def write_lines(path: str, lines) -> None:
    """A text file."""
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)


def build_parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m partial_fc.evaluation.ijb.synthetic",
        description=(__doc__ or "").partition("\nShapes:")[0].strip(),
        epilog="example:\n  python -m partial_fc.evaluation.ijb.synthetic /tmp/IJBC --subjects 40",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("root", metavar="ROOT", help="the folder that is made")
    parser.add_argument("--subjects", type=whole_number(4), default=40, help="people (default: 40)")
    parser.add_argument("--target", choices=sorted(GALLERIES), default="IJBC", help="names of files (default: IJBC)")
    parser.add_argument("--framing", choices=FRAMINGS, default="face", help="landmarks, see above (default: face)")
    add_seed(parser)
    add_workers(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """The command."""
    plan = write_protocol(args.root, args.subjects, args.seed, args.target, args.framing, args.workers)
    templates = args.subjects + len(plan.probes)
    pairs = plural(args.subjects * len(plan.probes), "pair")
    print(f"{args.root}: {args.target}, {plural(len(plan.images), 'image')}, {plural(templates, 'template')}, {pairs}")
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Write a protocol; returns the exit code."""
    args = build_parser().parse_args(arguments)
    return run_command(lambda: run(args))


if __name__ == "__main__":
    start(main)
