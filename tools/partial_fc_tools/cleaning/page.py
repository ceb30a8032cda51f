"""report.html of a cleaned set: the changes, with pictures of some images of each kind, and the limits."""

import io
import os
from xml.etree.ElementTree import Element

import numpy as np

from partial_fc.data.face_records import FaceRecords
from partial_fc.training.report.drawing import styled_figure
from partial_fc.training.report.markup import Content, facts, tag
from partial_fc.training.report.page import document
from partial_fc.training.report.pictures import picture
from partial_fc.training.report.style import LINES, SOFT
from partial_fc.utils.text import plural

from .changes import DUPLICATE, REASONS, REMOVED, SPLIT, TEST_IMAGE, TEST_PERSON, WRONG
from .find import Findings

REPORT = "report.html"
SAMPLES = 12  # pictured changes of each kind
WIDTH, HEIGHT = 880, 320  # of the chart in pixels
BINS = 100
LIMITS = {
    "far": "An image is far from its class below this cosine.",
    "near": "It is near another class from this cosine on.",
    "sure": "It gets the label of that class if the next class trails by at least this.",
    "split": "Two classes are one person if their images are at most this much nearer to their own class than to the "
    "other one.",
    "duplicate": "Two images of a class are near-duplicates from this cosine on.",
    "person": "A test image shows the person of a class from this cosine on.",
}
TEXTS = {
    WRONG: "Left: the image. Middle: a typical image of its class. Right: a typical image of the nearest other class.",
    SPLIT: "Left: an image of the class that is merged. Right: a typical image of the class that it is merged into.",
    DUPLICATE: "Left: the image that is left out. Right: the one that stays.",
    TEST_IMAGE: "Left: the image that is left out. Right: the test image.",
    TEST_PERSON: "Left: an image of the class that is left out. Right: the test image.",
}


def write_page(path: str, records: FaceRecords, findings: Findings) -> None:
    """Writes the page, a single HTML5 file without scripts. Raises OSError."""
    name = os.path.dirname(os.path.abspath(records.rec_path))
    total = plural(records.num_images, "image")
    header = tag(
        "header",
        tag("p", "Cleaning of a set", class_="kind"),
        tag("h1", name),
        tag("p", f"{total} of {plural(len(findings.classes.labels), 'class', 'classes')}.", class_="lead"),
    )
    limits = [(f"{name}: {LIMITS[name]}", f"{value:.4f}") for name, value in findings.limits._asdict().items()]
    chart = picture(draw_cosines(findings), "histograms of the cosines, with the limits", WIDTH, HEIGHT)
    sections = [
        tag("section", tag("h2", "Changes"), facts(findings.summary())),
        *_changes(records, findings),
        tag("section", tag("h2", "Limits"), [facts(limits), tag("figure", chart, class_="chart")]),
    ]
    with open(path, "w", encoding="utf-8", errors="replace") as file:
        file.write(document(f"Cleaning of {name}", tag("body", header, tag("main", sections))))


def _changes(records: FaceRecords, findings: Findings) -> list[Element]:
    """Returns a section for each kind of change, with pictures from the most to the least certain one."""
    classes, changes = findings.classes, findings.changes
    typical = classes.order[findings.fit.typical[classes.order]]
    rows, first = np.unique(classes.class_of[typical], return_index=True)
    typical_of = dict(zip(rows.tolist(), typical[first].tolist()))  # the first typical image of each class

    def show(image: int | None) -> Element:
        try:
            if image is not None:
                encoded, label = records.read_image(image)
                return picture(encoded, f"class {label}")
        except ValueError:  # a damaged record
            pass
        return tag("span")

    def item(image: int, reason: int) -> Element:
        row, other, new_row = (int(array[image]) for array in (classes.class_of, changes.other, changes.new_rows))
        shown = [show(image)]
        if reason == WRONG:
            shown += [show(typical_of.get(row)), show(typical_of.get(other))]
        elif reason == SPLIT:
            shown += [show(typical_of.get(other))]
        elif reason == DUPLICATE:
            shown += [show(other)]
        else:
            test, number = findings.test(other)
            shown += [picture(test.read(number), findings.test_name(other))]
        target = "left out" if new_row == REMOVED else str(classes.labels[new_row])
        key = records.keys([image])[0]
        caption: Content = [
            tag("b", f"{changes.near[image]:.3f}"),
            f" key {key}, class {classes.labels[row]} \N{RIGHTWARDS ARROW} {target}",
        ]
        return tag("li", tag("span", shown, class_="images"), tag("span", caption, class_="caption"))

    sections = []
    for reason, text in TEXTS.items():
        images = np.flatnonzero(changes.reasons == reason)
        if len(images):
            images = images[np.argsort(-changes.near[images], kind="stable")]
            shown = images[np.linspace(0, len(images) - 1, min(SAMPLES, len(images))).astype(np.int64)]
            count = f"{len(shown)} of {plural(len(images), 'image')}, from the highest to the lowest cosine. "
            items = tag("ul", [item(image, reason) for image in shown.tolist()], class_="pairs")
            sections.append(tag("section", tag("h2", REASONS[reason].capitalize()), tag("p", count + text), items))
    return sections


def draw_cosines(findings: Findings) -> bytes:
    """Returns a PNG with the histograms of the cosines, and the limits as vertical lines."""
    kinds = {
        "to the own class": findings.fit.statistics.own_cosine,
        "to the nearest other class": findings.nearest_other.best,
        "to a random other class": findings.fit.between,
        "to an altered copy": findings.copies,
    }
    file = io.BytesIO()
    with styled_figure("", figsize=(WIDTH / 100, HEIGHT / 100), dpi=100, layout="constrained") as figure:
        axes = figure.add_subplot()
        for (name, values), color in zip(kinds.items(), LINES):
            values = values[np.isfinite(values)]
            counts, edges = np.histogram(values, BINS, (-1, 1))
            axes.stairs(counts / max(len(values), 1), edges, label=name, color=color)
        for name in ("far", "near", "duplicate", "person"):
            value = getattr(findings.limits, name)
            axes.axvline(value, color=SOFT, linestyle=":", linewidth=1)
            axes.annotate(name, (value, 1), (2, -10), xycoords=("data", "axes fraction"), textcoords="offset points")
        axes.set(xlabel="cosine", ylabel="share of the images", yscale="log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.legend(frameon=False, fontsize="small", loc="upper left")
        figure.savefig(file, format="png")
    return file.getvalue()
