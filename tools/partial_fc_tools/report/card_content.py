"""The sections of a model card, as elements of HTML; card_pages.py writes them."""

import argparse
import os
from collections.abc import Mapping, Sequence

import numpy as np

from partial_fc.evaluation.verification import FOLDS, too_few
from partial_fc.evaluation.words import FACES, Words, words_of
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
from partial_fc_tools.verify.pair_rates import (
    CONFIDENCE,
    PairRates,
    Rate,
    correct_pairs,
    pair_rates,
    rates_by_group,
    rates_by_rejection,
    shared_threshold,
)

from .card_figures import SetFigures
from .card_pages import Section

SMALL = 100  # pairs of a kind: for 0 errors in 100 pairs, the interval of 95 % ends at 3.7 %
REJECTED = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)  # shares of the images
NOT_GIVEN = "not given"
UNTESTED_ITEMS = (
    "Items unlike the ones in these sets, and the exported file itself: all figures come from the trained weights."
)
RATES = ("genuine pairs", "false rejects", CONFIDENCE, "impostor pairs", "false accepts", CONFIDENCE)
INTERVALS = (
    f"Intervals are Wilson's, {CONFIDENCE}. They take pairs as independent draws and thresholds as given: they are too "
    "narrow where pairs share classes or images."
)
UNTESTED_FACES = (
    "People, cameras, poses, ages and lighting that are not in these sets, and whether the sets share people with the "
    "training data.",
    "Faces that were detected and aligned in another way than in these sets.",
    "Search among many people (1:N); attacks with photos, masks or generated images.",
)
UNTESTED_IMAGES = (
    "Classes and conditions that are not in these sets, and whether the sets share classes with the training data.",
    "Images that were made or cropped in another way than in these sets.",
    "Search among many classes (1:N).",
)


Sets = Mapping[str, SetFigures]
GroupRates = Mapping[str, Mapping[str, PairRates]]  # column -> group -> rates


def card_sections(
    training: Run,
    model: FaceModel | ItemModel,
    args: argparse.Namespace,
    sets: Sets,
    groups: Mapping[str, Sequence[str]],
    missing: Sequence[str],
) -> list[Section]:
    """Returns the sections of a card; some may be empty.

    Args:
        training: the training.
        model: its model.
        args: of the command; ``data``, ``data_license``, ``license`` and ``use`` are what only the author knows.
        sets, groups: see `measure`.
        missing: paths of validation sets of the training that do not exist.
    """
    rates: GroupRates = {}
    words = words_of(training.settings.get("task", "faces"), training.settings.get("dataset", ""))
    if sets:
        first = next(iter(sets.values()))
        threshold = shared_threshold(first.distance, first.issame, args.far)
        rates = {
            column: rates_by_group(first.distance, first.issame, names, threshold) for column, names in groups.items()
        }
        measured = [
            ("figures", "Accuracy", _accuracy(sets)),
            ("threshold", "Errors at one threshold", _rates(sets, rates, args.far, threshold, words)),
            ("quality", "Errors without the worst images", _rejection(sets, threshold)),
        ]
    else:
        measured = [("figures", "Accuracy", _accuracy_in_training(training))]
    untested = _untested(training, sets, rates, missing, words) if isinstance(model, FaceModel) else [UNTESTED_ITEMS]
    return [
        ("model", "Model", _model(training, model, args, words)),
        ("data", "Training data", _data(training, args)),
        *measured,
        ("untested", "Not tested", _bullets(untested)),
        ("settings", "Settings", facts(training.settings.items(), "columns")),
    ]


def _paragraph(text: str) -> Content:
    return tag("p", text, class_="lead")


def _bullets(lines: Sequence[str]) -> Content:
    return tag("ul", [tag("li", line) for line in lines], class_="notices") if lines else ()


def _table(label: str, names: Sequence[str], rows: Sequence[Sequence[str]]) -> Content:
    return table(label, names, rows, tag("caption", label))


def _model(training: Run, model: FaceModel | ItemModel, args: argparse.Namespace, words: Words) -> Content:
    summary, settings = training.curves["summary"], training.settings
    if isinstance(model, FaceModel):
        height, width = model.input.image_size
        inputs = f"{words.images} of {height} x {width} pixels, RGB"
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


def _accuracy(sets: Sets) -> Content:
    far = next(iter(sets.values())).verification.far
    rows, few = [], []
    for name, figures in sets.items():
        same, verification = int(figures.issame.sum()), figures.verification
        rows.append(
            [
                name,
                number(len(figures.issame)),
                percent(verification.accuracy),
                interval(correct_pairs(figures.distance, figures.issame, FOLDS)),
                percent(verification.tar_at_far),
                interval(Rate(round(verification.tar_at_far * same), same)),
                percent(verification.measured_far, 3),
                percent(verification.tar_interpolated),
                number(float(figures.norms.mean()), 2),
            ]
        )
        if problem := too_few(len(figures.issame) - same, far):
            few.append(f"{name}: {problem}.")
    tar_names = (f"TAR at FAR {far:g}", CONFIDENCE, "measured FAR", "insightface's TAR")
    text = (
        "Accuracy over ten folds, as in insightface: each fold uses the best threshold of the nine others. TAR is the "
        f"largest at a threshold whose measured FAR is at most {far:g}; insightface interpolates thresholds."
    )
    pairs = {name: (figures.distance, figures.issame) for name, figures in sets.items()}
    return [
        _paragraph(text),
        _table("accuracy", ("set", "pairs", "accuracy", CONFIDENCE, *tar_names, "mean norm"), rows),
        *map(_paragraph, [*few, INTERVALS]),
        charts_of(roc_charts("ROC", pairs, [far])),
    ]


def _rates(sets: Sets, groups: GroupRates, far: float, threshold: float, words: Words) -> Content:
    first = next(iter(sets))
    text = (
        f"Pairs are judged the {words.kinds[0]} below the squared distance {threshold:.4f} (cosine above "
        f"{1 - threshold / 2:.4f}), the highest threshold whose false accept rate on {first} is at most {far:g}. All "
        f"rates below are at this threshold. Genuine pairs are of the {words.kinds[0]}, impostor pairs of "
        f"{words.kinds[1]}."
    )
    rows = [[name, *_cells(pair_rates(each.distance, each.issame, threshold))] for name, each in sets.items()]
    content = [_paragraph(text), _table("sets", ("set", *RATES), rows)]
    for column, rates in groups.items():
        rows = [[group, *_cells(each), "small" if is_small(each) else ""] for group, each in rates.items()]
        content.append(_table(f"groups of {first} by {column}", (column, *RATES, ""), rows))
    if any(is_small(each) for rates in groups.values() for each in rates.values()):
        content.append(_paragraph(f"small: fewer than {SMALL} pairs of a kind. Compare intervals, not rates."))
    return content


def _rejection(sets: Sets, threshold: float) -> Content:
    content = [
        _paragraph(
            "The images with the smallest embedding norms are rejected first, with all of their pairs; the threshold "
            "does not change. If errors do not fall, the norm says nothing about quality."
        )
    ]
    lines: dict[str, list[Line]] = {"False rejects": [], "False accepts": []}
    for style, (name, (images, issame, distance, norms, _)) in enumerate(sets.items()):
        by_share = rates_by_rejection(distance, issame, norms, images, threshold, REJECTED)
        rows = [[percent(share, 0), *_cells(rates)] for share, rates in by_share.items()]
        content.append(_table(f"images rejected of {name}", ("rejected", *RATES), rows))
        for rates_of_kind, kind_lines in zip(zip(*by_share.values()), lines.values()):
            y = np.array([np.nan if rate.share is None else 100 * rate.share for rate in rates_of_kind])
            if np.isfinite(y).any():
                kind_lines.append(Line(name, 100 * np.array(REJECTED), y, style))
    charts = [
        Chart(title.lower().replace(" ", "-"), title, "% of the pairs left", drawn, True, x_name="% of images rejected")
        for title, drawn in lines.items()
        if drawn
    ]
    return [*content, charts_of(charts)]


def _untested(training: Run, sets: Sets, groups: GroupRates, missing: Sequence[str], words: Words) -> list[str]:
    lines = [f"The set {os.path.basename(path)} of the training: the file does not exist." for path in missing]
    for name, figures in sets.items():
        total = int(np.sum(~figures.issame))
        lines.append(
            f"{name}: false accept rates below {1 / total:.2g}, which {plural(total, 'impostor pair')} cannot show."
        )
        if name in training.curves["sets"]:
            lines.append(
                f"{name}, independently of the training: the training was verified on a set of this name. If it is the "
                "same set, its figures are optimistic, because the model may have been chosen by them."
            )
    if not groups:
        lines.append("Whether errors differ between groups of pairs: no groups were given.")
    for column, rates in groups.items():
        small = [group for group, each in rates.items() if is_small(each)]
        if small:
            lines.append(f"The groups {', '.join(small)} of {column}: too few pairs for a conclusion.")
    return [*lines, *(UNTESTED_FACES if words is FACES else UNTESTED_IMAGES)]


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
