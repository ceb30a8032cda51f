"""Describe a face set within seconds, from its index, its identity records and a sample of its images.

Shapes: N images, C identities.
"""

import argparse
import os
from collections import Counter
from contextlib import closing
from typing import Any

import numpy as np

from partial_fc.data.face_records import FaceRecords
from partial_fc.data.image_formats import extension
from partial_fc.utils.cli import add_json
from partial_fc.utils.text import amount, one_line, say_json

from .source import decoded_size, open_set

EXAMPLE = "/train_tmp/glint360k"
SAMPLE = 500  # images read: 5 s of seeks on a hard disk
BINS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)  # images per identity: lower bounds of the histogram's bars
BAR = 40  # characters of the longest bar


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("set", metavar="SET", help="folder of the set, or its train.rec")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    facts = describe_set(args.set)
    if args.json:
        say_json(facts)
    else:
        print(as_text(facts))
    return 0


def describe_set(path: str) -> dict[str, Any]:
    """Describes the set at `path`, for JSON. Raises OSError or ValueError that names the file and a remedy."""
    with closing(open_set(path)) as records:
        counts = np.sort(records.runs.images_per_label()[0])
        empty = records.num_identities - len(counts)
        middle = [max(number // 2 - empty, -1) for number in (records.num_identities - 1, records.num_identities)]
        return {
            "set": records.rec_path,
            "images": records.num_images,
            "identities": records.num_identities,
            "num_classes": records.num_identities,
            "image_size": records.image_size,
            "bytes": os.path.getsize(records.rec_path),
            "images_per_identity": {
                "min": 0 if empty else int(counts[0]),
                "median": float(np.mean([counts[number] if number >= 0 else 0 for number in middle])),
                "mean": records.num_images / records.num_identities,
                "max": int(counts[-1]),
            },
            "histogram": histogram(counts, empty),
            "ranges": records.ranges,
            "sample": describe_sample(records),
        }


def histogram(counts: np.ndarray, empty: int) -> list[dict[str, int | None]]:
    """Counts identities with `first` to `last` images (None: no bound), without empty bars at the ends.

    ``counts`` has the number of images of each identity that has any; ``empty`` is the number of other identities.
    """
    numbers = np.bincount(np.digitize(counts, BINS), minlength=len(BINS) + 1)
    numbers[0] += empty
    bars = zip([0, *BINS], [*(edge - 1 for edge in BINS), None], numbers.tolist())
    rows = [{"first": first, "last": last, "identities": number} for first, last, number in bars]
    used = np.flatnonzero(numbers)
    return rows[used[0] : used[-1] + 1]


def describe_sample(records: FaceRecords) -> dict[str, Any]:
    """Describes encoded sizes, formats and pixel sizes of at most SAMPLE images, evenly spaced over the set."""
    positions = np.unique(np.linspace(0, records.num_images - 1, SAMPLE).astype(np.int64)).tolist()
    images = [records.read_image(position)[0] for position in positions]
    lengths = [len(image) for image in images]
    formats = Counter(extension(image)[1:] or "unknown" for image in images)
    sizes = Counter(decoded_size(image) for image in images)
    return {
        "images": len(images),
        "mean_bytes": float(np.mean(lengths)),
        "max_bytes": max(lengths),
        "formats": dict(formats.most_common()),
        "sizes": {f"{size[0]}x{size[1]}" if size else "undecodable": n for size, n in sizes.most_common()},
    }


def as_text(facts: dict[str, Any]) -> str:
    """Formats the description as text."""

    def counted(numbers: dict[str, int]) -> str:
        return ", ".join(f"{name} {number}" for name, number in numbers.items())

    each, sample, size = facts["images_per_identity"], facts["sample"], facts["image_size"]
    ranges = {
        "integers": "exact integers and float32 labels",
        "float32": "float32 only, as the original writes them; from 2^24 on the images' labels determine them",
        "none": "no identity records; labels are in the headers of images",
    }
    lines = [
        f"set             {one_line(facts['set'])}",
        f"images          {facts['images']:,}",
        f"identities      {facts['identities']:,}   (train with num_classes={facts['num_classes']})",
        f"image size      {f'{size[0]}x{size[1]}' if size else 'no property file'}",
        f"bytes           {facts['bytes']:,}   ({amount(facts['bytes'])})",
        f"identity ranges {ranges[facts['ranges']]}",
        f"images each     min {each['min']:,}, median {each['median']:,g}, mean {each['mean']:,.1f}, "
        f"max {each['max']:,}",
        *bars(facts["histogram"]),
        f"of {sample['images']} images  mean {sample['mean_bytes']:,.0f} bytes, max {sample['max_bytes']:,}; "
        f"{counted(sample['formats'])}; {counted(sample['sizes'])}",
    ]
    return "\n".join(lines)


def bars(rows: list[dict[str, Any]]) -> list[str]:
    """Formats the histogram, a line per bar."""
    longest = max(row["identities"] for row in rows)
    lines = []
    for row in rows:
        last = f"-{row['last']}" if row["last"] is not None else "+"
        span = str(row["first"]) + (last if row["last"] != row["first"] else "")
        bar = "#" * -(-row["identities"] * BAR // longest)
        lines.append(f"  {span:>9} images  {bar:<{BAR}} {row['identities']:,}")
    return lines
