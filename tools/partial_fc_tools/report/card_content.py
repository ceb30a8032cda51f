"""The sections of a model card, as elements of HTML; card_pages.py writes them."""

import argparse
import os
from collections.abc import Sequence

import numpy as np

from partial_fc.evaluation.verification import too_few
from partial_fc.export.item_model import ItemModel
from partial_fc.export.model import FaceModel
from partial_fc.export.model_file import model_files
from partial_fc.training.report.charts import Chart, Line, figure_name, roc_charts
from partial_fc.training.report.curves_json import Run, figures_of
from partial_fc.training.report.formatting import SPACE, number, percent
from partial_fc.training.report.markup import Content, facts, table, tag
from partial_fc.training.report.page import figures as charts_of
from partial_fc.utils.text import plural
from partial_fc_tools.inference.origin import files_digest
from partial_fc_tools.verify.pair_rates import CONFIDENCE, PairRates, Rate

from .card_figures import Figures
from .card_pages import Section

SMALL = 100  # pairs of a kind: for 0 errors in 100 pairs, the interval of 95 % ends at 3.7 %
NOT_GIVEN = "not given"
UNTESTED_ITEMS = (
    "Items that differ from the items of these sets, and the exported file itself: the training measured the figures."
)
RATES = ("pairs of one person", "false rejects", CONFIDENCE, "pairs of two people", "false accepts", CONFIDENCE)
INTERVALS = (
    f"Intervals are Wilson's, {CONFIDENCE}. They take pairs as independent draws and thresholds as given: they are too "
    "narrow where pairs share people or images."
)


def card_sections(
    training: Run, model: FaceModel | ItemModel, args: argparse.Namespace, figures: Figures, missing: Sequence[str]
) -> list[Section]:
    """Returns the sections of a card; some may be empty.

    Args:
        training: the training.
        model: its model.
        args: of the command; ``data``, ``data_license``, ``license`` and ``use`` are what only the author knows.
        figures: of the model.
        missing: paths of validation sets of the training that do not exist.
    """
    untested = _untested(training, figures, missing) if isinstance(model, FaceModel) else [UNTESTED_ITEMS]
    return [
        ("model", "Model", _model(training, model, args)),
        ("data", "Training data", _data(training, args)),
        ("figures", "Accuracy", _accuracy(figures) if figures.sets else _accuracy_in_training(training)),
        ("threshold", "Errors at one threshold", _rates(figures) if figures.sets else ()),
        ("quality", "Errors without the worst images", _rejection(figures) if figures.sets else ()),
        ("untested", "Not tested", _bullets(untested)),
        ("settings", "Settings", facts(training.settings.items(), "columns")),
    ]


def _paragraph(text: str) -> Content:
    return tag("p", text, class_="lead")


def _bullets(lines: Sequence[str]) -> Content:
    return tag("ul", [tag("li", line) for line in lines], class_="notices") if lines else ()


def _table(label: str, names: Sequence[str], rows: Sequence[Sequence[str]]) -> Content:
    return table(label, names, rows, tag("caption", label))


def _model(training: Run, model: FaceModel | ItemModel, args: argparse.Namespace) -> Content:
    summary, settings = training.curves["summary"], training.settings
    if isinstance(model, FaceModel):
        height, width = model.input.image_size
        inputs = f"aligned faces of {height} x {width} pixels, RGB"
        mirrored = ", summed over the image and its mirror image" if model.mirrored else ", without mirror images"
    else:
        inputs = ", ".join(f"{each.name} {each.shape} {each.type}" for each in model.session.get_inputs())
        mirrored = ""
    # A checkpoint may consist of several files; only a single file gets a size and a digest.
    file = os.path.basename(os.path.abspath(model.name))
    if os.path.isfile(model.name):
        files = model_files(model.name) if model.name.endswith(".onnx") else [model.name]
        file += f", {sum(map(os.path.getsize, files)):,} bytes, SHA-256 {files_digest(files)}"
    rows = [
        ("file", file),
        ("input", inputs),
        (
            "embedding",
            f"{model.session.get_outputs()[0].shape[1]} numbers; compared by squared distance{mirrored}",
        ),
        ("network, loss", f"{settings.get('network', NOT_GIVEN)}, {settings.get('loss', NOT_GIVEN)}"),
        ("training", f"{summary['updates']:,} updates on {plural(summary['ranks'], 'rank')}"),
        ("final loss", number(summary["final_loss"], 4)),
        ("versions", ", ".join(f"{name} {version}" for name, version in summary["versions"].items())),
        ("use", args.use or NOT_GIVEN),
        ("licence of the model", args.license or NOT_GIVEN),
    ]
    problems = [f"Problem on {name}: {text}." for name, texts in summary["problems"].items() for text in texts]
    return [facts(rows, "columns"), _bullets(problems)]


def _data(training: Run, args: argparse.Namespace) -> Content:
    settings = training.settings
    names = ("task", "task_options", "dataset", "rec", "num_classes")
    rows = [
        ("data, as given", args.data or NOT_GIVEN),
        ("licence of the data, as given", args.data_license or NOT_GIVEN),
        *((f"setting {name}", settings[name]) for name in names if name in settings),
    ]
    return facts(rows, "columns")


def _accuracy_in_training(training: Run) -> Content:
    """Returns the figures of the training's own last verification."""
    rows = [
        [name, number(points[-1]["num_update"]), figure_name(figure), number(value, 4)]
        for name, points in training.curves["sets"].items()
        if points
        for figure, value in figures_of(points[-1]).items()
    ]
    if not rows:
        return _paragraph("Not measured: there was no set of pairs, and the training has verified nothing.")
    return [
        _paragraph(
            "Not measured again: the last figures of the training. They are optimistic if they were used to choose the "
            "model."
        ),
        _table("verifications", ("set", "update", "figure", "value"), rows),
    ]


def _accuracy(figures: Figures) -> Content:
    far = next(iter(figures.sets.values())).verification.far
    rows, few = [], []
    for name, of_set in figures.sets.items():
        same, verification = int(of_set.issame.sum()), of_set.verification
        rows.append(
            [
                name,
                number(len(of_set.issame)),
                percent(verification.accuracy),
                interval(of_set.correct),
                percent(verification.tar_at_far),
                interval(Rate(round(verification.tar_at_far * same), same)),
                percent(verification.measured_far, 3),
                percent(verification.tar_interpolated),
                number(of_set.xnorm, 2),
            ]
        )
        if problem := too_few(len(of_set.issame) - same, far):
            few.append(f"{name}: {problem}.")
    tar_names = (f"TAR at FAR {far:g}", CONFIDENCE, "measured FAR", "insightface's TAR")
    text = (
        "Accuracy over ten folds, as in insightface: each fold uses the best threshold of the nine others. TAR is the "
        f"largest at a threshold whose measured FAR is at most {far:g}; insightface interpolates thresholds."
    )
    pairs = {name: (of_set.distance, of_set.issame) for name, of_set in figures.sets.items()}
    return [
        _paragraph(text),
        _table("accuracy", ("set", "pairs", "accuracy", CONFIDENCE, *tar_names, "mean norm"), rows),
        *map(_paragraph, [*few, INTERVALS]),
        charts_of(roc_charts("ROC", pairs, [far])),
    ]


def _rates(figures: Figures) -> Content:
    assert figures.threshold is not None
    first = next(iter(figures.sets))
    text = (
        f"Pairs are judged the same person below the squared distance {figures.threshold:.4f} (cosine above "
        f"{1 - figures.threshold / 2:.4f}), the highest threshold whose false accept rate on {first} is at most "
        f"{figures.far:g}. All rates below are at this threshold."
    )
    rows = [[name, *_cells(of_set.rates)] for name, of_set in figures.sets.items()]
    content = [_paragraph(text), _table("sets", ("set", *RATES), rows)]
    any_small = False
    for column, groups in figures.groups.items():
        small = {group: is_small(rates) for group, rates in groups.items()}
        any_small |= any(small.values())
        rows = [[group, *_cells(rates), "small" if small[group] else ""] for group, rates in groups.items()]
        content.append(_table(f"groups of {first} by {column}", (column, *RATES, ""), rows))
    if any_small:
        content.append(_paragraph(f"small: fewer than {SMALL} pairs of a kind. Compare intervals, not rates."))
    return content


def _rejection(figures: Figures) -> Content:
    content = [
        _paragraph(
            "The images with the smallest embedding norms are rejected first, with all of their pairs; the threshold "
            "stays. If errors do not fall, the norm says nothing about quality."
        )
    ]
    lines: dict[str, list[Line]] = {"False rejects": [], "False accepts": []}
    for look, (name, of_set) in enumerate(figures.sets.items()):
        rows = [[percent(share, 0), *_cells(rates)] for share, rates in of_set.rejection.items()]
        content.append(_table(f"images rejected of {name}", ("rejected", *RATES), rows))
        x = 100 * np.array(list(of_set.rejection))
        for rates_of_kind, kind_lines in zip(zip(*of_set.rejection.values()), lines.values()):
            y = np.array([np.nan if rate.share is None else 100 * rate.share for rate in rates_of_kind])
            if np.isfinite(y).any():
                kind_lines.append(Line(name, x, y, look))
    charts = [
        Chart(title.lower().replace(" ", "-"), title, "% of the pairs left", drawn, True, x_name="% of images rejected")
        for title, drawn in lines.items()
        if drawn
    ]
    return [*content, charts_of(charts)]


def _untested(training: Run, figures: Figures, missing: Sequence[str]) -> list[str]:
    lines = [f"The set {path}, which the training names: the file does not exist." for path in missing]
    for name, of_set in figures.sets.items():
        total = of_set.rates.false_accepts.total
        lines.append(
            f"{name}: false accept rates below {1 / total:.2g}, which {plural(total, 'pair')} of different people "
            "cannot show."
        )
        if name in training.curves["sets"]:
            lines.append(
                f"{name} again: the training was verified on a set of this name. If it is the same set, choices made "
                "on it make its figures optimistic."
            )
    if not figures.groups:
        lines.append("Whether errors differ between groups of people: no groups were given.")
    for column, groups in figures.groups.items():
        small = [group for group, rates in groups.items() if is_small(rates)]
        if small:
            lines.append(f"The groups {', '.join(small)} of {column}: too few pairs for a conclusion.")
    return [
        *lines,
        "People, cameras, poses, ages and lighting that are not in these sets, and whether the sets share people with "
        "the training data.",
        "Faces that were detected and aligned in another way than in these sets.",
        "Search among many people (1:N); attacks with photos, masks or generated images.",
    ]


def is_small(rates: PairRates) -> bool:
    """Returns whether a group has too few pairs of one kind."""
    return min(rate.total for rate in rates) < SMALL


def interval(rate: Rate) -> str:
    """Formats the interval of a rate: "1.20 - 3.40 %"."""
    low, high = rate.interval
    return f"{100 * low:.2f} - {100 * high:.2f}{SPACE}%" if rate.total else "-"


def _cells(rates: PairRates) -> list[str]:
    cells = []
    for rate in rates:
        share = f"{percent(rate.share)} ({rate.events:,})" if rate.total else "-"
        cells += [number(rate.total), share, interval(rate)]
    return cells
