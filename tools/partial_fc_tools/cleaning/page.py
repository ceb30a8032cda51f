"""report.html of a cleaned set: what was found, with the pictures of some images of each kind, and the limits."""

import os
from xml.etree.ElementTree import Element

import numpy as np

from partial_fc.data.face_records import FaceRecords
from partial_fc.training.report.markup import Content, facts, tag
from partial_fc.training.report.page import document
from partial_fc.training.report.pictures import picture
from partial_fc.utils.text import plural

from .changes import DUPLICATE, REASONS, REMOVED, SPLIT, TEST_IMAGE, TEST_PERSON, UNREADABLE, WRONG
from .chart import HEIGHT, WIDTH, draw_cosines
from .find import Found

REPORT = "report.html"
SAMPLES = 12  # changes of a kind that are shown
LIMITS = {
    "far": "An image is far from its class below this cosine.",
    "near": "It is near another class from this cosine on.",
    "sure": "It gets the label of that class if the next one is behind by this much.",
    "split": "Two classes are one person if their images are nearer to their own class by at most this much.",
    "duplicate": "Two images of a class are near-duplicates from this cosine on.",
    "person": "A test image shows the person of a class from this cosine on.",
}
TEXTS = {
    WRONG: "Left: the image. Middle: a typical image of its class. Right: one of the class that it is near.",
    SPLIT: "Left: an image of the class that is merged. Right: a typical image of the class that it is merged into.",
    DUPLICATE: "Left: the image that is left out. Right: the one that stays.",
    TEST_IMAGE: "Left: the image that is left out. Right: the test image.",
    TEST_PERSON: "Left: an image of the class that is left out. Right: the test image.",
}


class Pictures:
    """The pictures of a page, and what is written below them."""

    def __init__(self, records: FaceRecords, found: Found):
        self._records, self._found = records, found
        typical = found.classes.order[found.fit.typical[found.classes.order]]
        # The first typical image of each class that has one.
        rows, first = np.unique(found.classes.rows[typical], return_index=True)
        self._typical = dict(zip(rows.tolist(), typical[first].tolist()))

    def item(self, image: int) -> Element:
        """Returns the pictures of a changed image and of what it is near."""
        found, reason = self._found, int(self._found.changes.reasons[image])
        row, other = int(found.classes.rows[image]), int(found.changes.other[image])
        shown = [self._of_set(image)]
        if reason == WRONG:
            shown += [self._of_class(row), self._of_class(other)]
        elif reason == SPLIT:
            shown += [self._of_class(other)]
        elif reason == DUPLICATE:
            shown += [self._of_set(other)]
        elif reason in (TEST_IMAGE, TEST_PERSON):
            test, inside = found.test(other)
            shown += [picture(test.read(inside), found.test_name(other))]
        return tag("li", tag("span", shown, class_="images"), tag("span", self._caption(image), class_="caption"))

    def _caption(self, image: int) -> Content:
        found, names = self._found, self._found.classes.names
        after = int(found.changes.classes[image])
        target = "left out" if after == REMOVED else str(names[after])
        cosine = tag("b", f"{found.changes.near[image]:.3f}")
        key = self._records.keys([image])[0]
        return [cosine, f" key {key}, class {names[found.classes.rows[image]]} \N{RIGHTWARDS ARROW} {target}"]

    def _of_class(self, row: int) -> Element:
        image = self._typical.get(row)
        return tag("span") if image is None else self._of_set(image)

    def _of_set(self, image: int) -> Element:
        try:
            encoded, label = self._records.read_image(image)
        except ValueError:
            return tag("span")
        return picture(encoded, f"class {label}")


def write_page(path: str, records: FaceRecords, found: Found) -> None:
    """Writes the page: HTML5 without scripts, in one file. Raises OSError."""
    name = os.path.dirname(os.path.abspath(records.rec_path))
    pictures = Pictures(records, found)
    total = plural(records.num_images, "image")
    header = tag(
        "header",
        tag("p", "Cleaning of a set", class_="kind"),
        tag("h1", name),
        tag("p", f"{total} of {plural(len(found.classes.names), 'class', 'classes')}.", class_="lead"),
    )
    sections = [tag("section", tag("h2", "Changes"), facts(found.summary()))]
    sections += [part for reason in REASONS if (part := _section(reason, found, pictures)) is not None]
    sections.append(tag("section", tag("h2", "Limits"), _limits(found)))
    with open(path, "w", encoding="utf-8", errors="replace") as file:
        file.write(document(f"Cleaning of {name}", tag("body", header, tag("main", sections))))


def _section(reason: int, found: Found, pictures: Pictures) -> Element | None:
    """Returns the section of a kind of change, or None without one."""
    images = np.flatnonzero(found.changes.reasons == reason)
    if not len(images) or reason == UNREADABLE:
        return None
    # From the surest to the least sure one, evenly.
    images = images[np.argsort(-found.changes.near[images], kind="stable")]
    shown = images[np.linspace(0, len(images) - 1, min(SAMPLES, len(images))).astype(np.int64)]
    text = f"{len(shown)} of {plural(len(images), 'image')}, by the cosine to what they are near. {TEXTS[reason]}"
    items = [pictures.item(image) for image in shown.tolist()]
    return tag("section", tag("h2", REASONS[reason].capitalize()), tag("p", text), tag("ul", items, class_="pairs"))


def _limits(found: Found) -> Content:
    rows = [(f"{name}: {LIMITS[name]}", f"{value:.4f}") for name, value in found.limits._asdict().items()]
    chart = picture(draw_cosines(found), "histograms of the cosines, with the limits", WIDTH, HEIGHT)
    return [facts(rows), tag("figure", chart, class_="chart")]
