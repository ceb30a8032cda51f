"""Draw a contact sheet: a row per identity, with label and name on the left. Unreadable images are crossed out.

Shapes: S identities (rows), I images of each (columns), H, W image size.
"""

import argparse
import os
import sys
from contextlib import closing

import cv2
import numpy as np

from partial_fc.data.face_records import FaceRecords
from partial_fc.data.names import read_names
from partial_fc.data.transforms import decode_rgb
from partial_fc.utils.cli import add_force, add_seed, whole_number
from partial_fc.utils.decoder_messages import DecoderMessages
from partial_fc.utils.staging import staged_files
from partial_fc.utils.text import plural, say

from .source import by_identity, image_size_of, open_set

EXAMPLE = "/train_tmp/mine sheet.png --labels 3,17 --images 12"
MARGIN = 130  # pixels on the left for label and name
GAP = 2
PAPER, INK, CROSS = (255, 255, 255), (40, 40, 40), (0, 0, 200)
FONT, LETTERS = cv2.FONT_HERSHEY_SIMPLEX, 18  # characters that fit into the margin
MAX_SIDE, MAX_PIXELS = 1_000_000, 1 << 28  # libpng's limit for a side; 800 MB of memory
MIN_ROW = 36  # pixels: two lines of text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("set", metavar="SET", help="folder of the set, or its train.rec")
    parser.add_argument("out", metavar="OUT.png", help="the new image")
    parser.add_argument(
        "--identities", type=whole_number(1), default=8, help="number of random identities (default: 8)"
    )
    parser.add_argument("--labels", type=label_list, help="identities to show instead, such as 3,17")
    parser.add_argument(
        "--images", type=whole_number(1), default=10, help="maximum number of images per identity (default: 10)"
    )
    add_seed(parser)
    add_force(parser)


def label_list(text: str) -> list[int]:
    """An argparse type: "3,17" -> [3, 17]."""
    labels = text.split(",")
    if not all(label.isdigit() for label in labels):
        raise argparse.ArgumentTypeError(f"must be labels separated by commas, as 3,17, got {text!r}")
    return [int(label) for label in labels]


def run(args: argparse.Namespace) -> int:
    """Writes the sheet; returns the exit code."""
    if not args.out.lower().endswith(".png"):
        raise ValueError(f"{args.out}: the sheet is a PNG, expected a name that ends with .png")
    unreadable: list[str] = []
    with closing(open_set(args.set)) as records:
        rng = np.random.default_rng(args.seed)
        present = np.unique(records.runs.labels)
        chosen = args.labels or sorted(rng.choice(present, min(args.identities, len(present)), replace=False).tolist())
        absent = [label for label in chosen if label not in present]
        if absent:
            raise ValueError(
                f"{records.rec_path} has no images with label {absent[0]}; its labels are {present[0]} to {present[-1]}"
            )
        names = read_names(records.rec_path, records.num_identities)
        size = image_size_of(records)
        images_of = {label: list(positions) for label, positions in by_identity(records) if label in chosen}
        samples = []
        for label in chosen:
            positions = images_of[label]
            samples.append(sorted(rng.choice(positions, min(args.images, len(positions)), replace=False).tolist()))
        sheet = empty_sheet(len(samples), max(map(len, samples)), size)
        for row, label, positions in zip(sheet, chosen, samples):
            for number, line in enumerate(caption(label, names)):
                cv2.putText(row, line, (4, 14 + 16 * number), FONT, 0.38, INK, 1, cv2.LINE_AA)
            for number, position in enumerate(positions):
                left = MARGIN + number * (size[1] + GAP)
                row[: size[0], left : left + size[1]] = cell(records, position, size, unreadable)
    folder, name = os.path.split(args.out)
    with staged_files(folder, [name], args.force) as stage, open(os.path.join(stage, name), "wb") as file:
        file.write(cv2.imencode(".png", sheet.reshape(-1, *sheet.shape[2:]))[1].tobytes())
    for text in unreadable:
        say(f"crossed out: {text}", sys.stderr)
    say(f"{args.out}: {plural(len(chosen), 'identity', 'identities')}: {', '.join(map(str, chosen))}")
    return 0


def cell(records: FaceRecords, position: int, size: tuple, unreadable: list[str]) -> np.ndarray:
    """Reads one image (H, W, 3) BGR; if that fails, returns a cross and adds the error to `unreadable`."""
    where = ""  # errors of read_image name the image
    try:
        encoded, _ = records.read_image(position)
        where = f"{records.describe(position)} "
        with DecoderMessages():  # hides warnings of the C libraries, which do not name the image
            return cv2.cvtColor(decode_rgb(encoded, size), cv2.COLOR_RGB2BGR)
    except ValueError as error:
        unreadable.append(f"{where}{error}")
    height, width = size
    image = np.full((height, width, 3), 200, np.uint8)
    cv2.line(image, (0, 0), (width - 1, height - 1), CROSS, 2)
    cv2.line(image, (0, height - 1), (width - 1, 0), CROSS, 2)
    return image


def caption(label: int, names: list[str] | None) -> list[str]:
    """Returns the lines on the left: the label, and the name if there is one. OpenCV draws ASCII only."""
    if names is None:
        return [str(label)]
    name = "".join(character if " " <= character <= "~" else "?" for character in names[label])
    return [str(label), name if len(name) <= LETTERS else name[: LETTERS - 2] + ".."]


def empty_sheet(rows: int, columns: int, size: tuple) -> np.ndarray:
    """Returns a sheet (S, row height, width, 3). Raises ValueError if it is too large for a PNG or for memory."""
    height, width = max(size[0], MIN_ROW) + GAP, MARGIN + columns * (size[1] + GAP)
    if max(rows * height, width) > MAX_SIDE or rows * height * width > MAX_PIXELS:
        raise ValueError(
            f"a sheet of {rows} rows and {columns} columns would have {rows * height}x{width} pixels, which is too "
            "large: use fewer --identities or --images"
        )
    return np.full((rows, height, width, 3), PAPER, np.uint8)
