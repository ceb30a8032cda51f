"""What a model card says: sections of paragraphs, lists, tables and charts, which card_pages.py writes."""

import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from partial_fc.evaluation.verification import too_few
from partial_fc.export.item_model import ItemModel
from partial_fc.export.model import FaceModel
from partial_fc.export.model_file import model_files
from partial_fc.training.report import formatting
from partial_fc.training.report.charts import Chart, Line, figure_name, roc_charts
from partial_fc.training.report.curves_json import Run
from partial_fc.training.report.formatting import number, percent
from partial_fc.utils.text import plural
from partial_fc_tools.inference.origin import files_digest
from partial_fc_tools.verify.pair_rates import CONFIDENCE, PairRates, Rate

from .card_figures import Figures

SMALL = 100  # pairs of a kind: of a rate of 0 in 100, the interval of 95 % ends at 3.7 %
NOT_GIVEN = "not given"
UNTESTED_ITEMS = (
    "Items that differ from those of these sets, and the file itself: the figures are those of the training."
)
RATES = ("pairs of one person", "false rejects", CONFIDENCE, "pairs of two people", "false accepts", CONFIDENCE)
INTERVALS = (
    f"Intervals are Wilson's, {CONFIDENCE}. They take pairs as independent draws and thresholds as given: they are too "
    "narrow where pairs share people or images."
)


class Given(NamedTuple):
    """What only the person who writes the card knows; None for what is not given."""

    data: str | None
    data_license: str | None
    license: str | None
    use: str | None


class Table(NamedTuple):
    """A table; the first cell of a row names it."""

    label: str
    names: Sequence[str]
    rows: Sequence[Sequence[str]]


class Facts(NamedTuple):
    """Names and values."""

    rows: Sequence[tuple[str, str]]


class Bullets(NamedTuple):
    """A list of sentences."""

    lines: Sequence[str]


class Section(NamedTuple):
    """A part of the card under a heading."""

    key: str
    title: str
    content: Sequence[str | Facts | Table | Bullets | Chart]


def card_sections(
    training: Run, model: FaceModel | ItemModel, given: Given, figures: Figures, missing: Sequence[str]
) -> list[Section]:
    """Returns the sections of a card; ``missing`` are paths of validation sets of the training that do not exist."""
    sections = [
        Section("model", "Model", [_model(training, model, given), *_problems(training)]),
        Section("data", "Training data", [_data(training, given)]),
        Section("figures", "Accuracy", _accuracy(figures) if figures.sets else _of_training(training)),
        Section("threshold", "Errors at one threshold", _rates(figures)),
        Section("quality", "Errors without the worst images", _rejection(figures)),
        Section(
            "untested",
            "Not tested",
            [Bullets(_untested(training, figures, missing) if isinstance(model, FaceModel) else [UNTESTED_ITEMS])],
        ),
        Section("settings", "Settings", [Facts(list(training.settings.items()))]),
    ]
    return [section for section in sections if section.content]


def _model(training: Run, model: FaceModel | ItemModel, given: Given) -> Facts:
    summary, settings = training.curves["summary"], training.settings
    if isinstance(model, FaceModel):
        height, width = model.input.image_size
        inputs = f"aligned faces of {height} x {width} pixels, RGB"
        mirrored = ", with those of mirror images added" if model.mirrored else ", without mirror images"
    else:
        inputs = ", ".join(f"{each.name} {each.shape} {each.type}" for each in model.session.get_inputs())
        mirrored = ""
    dimension = model.session.get_outputs()[0].shape[1]
    rows = [
        ("file", _file(model.name)),
        ("input", inputs),
        ("embedding", f"{dimension} numbers; compared by squared distance{mirrored}"),
        ("network, loss", f"{settings.get('network', NOT_GIVEN)}, {settings.get('loss', NOT_GIVEN)}"),
        ("training", f"{summary['updates']:,} updates on {plural(summary['ranks'], 'rank')}"),
        ("final loss", number(summary["final_loss"], 4)),
        ("versions", ", ".join(f"{name} {version}" for name, version in summary["versions"].items())),
        ("use", given.use or NOT_GIVEN),
        ("licence of the model", given.license or NOT_GIVEN),
    ]
    return Facts(rows)


def _file(path: str) -> str:
    """Returns name, size and SHA-256 of a model; of a checkpoint in several files the name."""
    if not os.path.isfile(path):
        return os.path.basename(os.path.abspath(path))
    files = model_files(path) if path.endswith(".onnx") else [path]
    return f"{os.path.basename(path)}, {sum(map(os.path.getsize, files)):,} bytes, SHA-256 {files_digest(files)}"


def _problems(training: Run) -> list[Bullets]:
    """Returns the problems that the last verification of the training has found."""
    problems = training.curves["summary"].get("problems") or {}
    lines = [f"Problem on {name}: {problem}." for name, found in problems.items() for problem in found]
    return [Bullets(lines)] if lines else []


def _data(training: Run, given: Given) -> Facts:
    settings = training.settings
    rows = [
        ("data, as given", given.data or NOT_GIVEN),
        ("licence of the data, as given", given.data_license or NOT_GIVEN),
        *(
            (f"setting {name}", settings[name])
            for name in ("task", "task_options", "dataset", "rec", "num_classes")
            if name in settings
        ),
    ]
    return Facts(rows)


def _of_training(training: Run) -> list[str | Table]:
    """Returns the figures of the last verification of the training itself."""
    rows = [
        [name, number(points[-1]["num_update"]), figure_name(figure), number(value, 4)]
        for name, points in training.curves["sets"].items()
        if points
        for figure, value in points[-1].items()
        if figure not in ("num_update", "seconds")
    ]
    if not rows:
        return ["Not measured: no set of pairs was there, and the training has verified nothing."]
    return [
        "Not measured again: the last figures of the training. If the model was chosen by them, it looks better.",
        Table("verifications", ("set", "update", "figure", "value"), rows),
    ]


def _accuracy(figures: Figures) -> list[str | Table | Chart]:
    rows = []
    for name, found in figures.sets.items():
        same = int(found.issame.sum())
        tar = found.verification.tar_at_far
        rows.append(
            [
                name,
                number(len(found.issame)),
                percent(found.verification.accuracy),
                interval(found.correct),
                percent(tar),
                interval(Rate(round(tar * same), same)),
                percent(found.verification.measured_far, 3),
                percent(found.verification.tar_interpolated),
                number(found.xnorm, 2),
            ]
        )
    far = next(iter(figures.sets.values())).verification.far
    tar_names = (f"TAR at FAR {far:g}", CONFIDENCE, "measured FAR", "insightface's TAR")
    names = ("set", "pairs", "accuracy", CONFIDENCE, *tar_names, "mean norm")
    pairs = {name: (found.distance, found.issame) for name, found in figures.sets.items()}
    text = (
        "Accuracy by ten folds; the threshold of each is chosen on the nine others, as insightface does. TAR is the "
        f"largest at a threshold whose measured FAR is at most {far:g}; insightface interpolates thresholds."
    )
    few = [f"{name}: {few}." for name, (_, issame) in pairs.items() if (few := too_few(int(np.sum(~issame)), far))]
    return [text, Table("accuracy", names, rows), *few, INTERVALS, *roc_charts("ROC", pairs, [far])]


def _rates(figures: Figures) -> list[str | Table]:
    if figures.threshold is None:
        return []
    first = next(iter(figures.sets))
    text = (
        f"Pairs are judged the same person below the squared distance {figures.threshold:.4f} (cosine above "
        f"{1 - figures.threshold / 2:.4f}), the highest threshold whose false accept rate on {first} is at most "
        f"{figures.far:g}. All rates below are at this threshold."
    )
    rows = [[name, *_cells(found.rates)] for name, found in figures.sets.items()]
    content: list[str | Table] = [text, Table("sets", ("set", *RATES), rows)]
    for column, groups in figures.groups.items():
        lines = [[group, *_cells(rates), "small" if is_small(rates) else ""] for group, rates in groups.items()]
        content.append(Table(f"groups of {first} by {column}", (column, *RATES, ""), lines))
    if any(is_small(rates) for groups in figures.groups.values() for rates in groups.values()):
        content.append(f"small: fewer than {SMALL} pairs of a kind. Compare intervals, not rates.")
    return content


def _rejection(figures: Figures) -> list[str | Table | Chart]:
    if not figures.sets:
        return []
    lines: dict[str, list[Line]] = {"false rejects": [], "false accepts": []}
    content: list[str | Table | Chart] = [
        "The images with the smallest norms of their embeddings are rejected first, with all pairs that they are in; "
        "the threshold stays. If errors do not fall, the norm says nothing about quality."
    ]
    for look, (name, found) in enumerate(figures.sets.items()):
        rows = [[percent(share, 0), *_cells(rates)] for share, rates in found.rejection.items()]
        content.append(Table(f"images rejected of {name}", ("rejected", *RATES), rows))
        x = 100 * np.array(list(found.rejection))
        for kind, drawn in lines.items():
            both = [
                rates.false_rejects if kind == "false rejects" else rates.false_accepts
                for rates in found.rejection.values()
            ]
            y = np.array([np.nan if rate.share is None else 100 * rate.share for rate in both])
            if np.isfinite(y).any():
                drawn.append(Line(name, x, y, look))
    charts = [
        Chart(
            kind.replace(" ", "-"), kind.capitalize(), "% of the pairs left", drawn, True, x_name="% of images rejected"
        )
        for kind, drawn in lines.items()
        if drawn
    ]
    return [*content, *charts]


def _untested(training: Run, figures: Figures, missing: Sequence[str]) -> list[str]:
    lines = [f"The set {path}, which the training names: the file is not there." for path in missing]
    for name, found in figures.sets.items():
        rate = found.rates.false_accepts
        lines.append(
            f"{name}: false accept rates below {1 / rate.total:.2g}, which {plural(rate.total, 'pair')} of different "
            "people cannot show."
        )
        if name in training.curves["sets"]:
            lines.append(
                f"{name} again: the training was verified on a set of this name. If it is the same, what was chosen by "
                "it looks better on it."
            )
    if not figures.groups:
        lines.append("Whether errors differ between groups of people: no groups were given.")
    for column, groups in figures.groups.items():
        small = [group for group, rates in groups.items() if is_small(rates)]
        if small:
            lines.append(f"The groups {', '.join(small)} of {column}: too few pairs for a conclusion.")
    return [
        *lines,
        "People, cameras, poses, ages and light that are not in these sets, and whether people of the training data "
        "are in them.",
        "Faces that another detector has found and aligned than those of these sets.",
        "Search among many people (1:N); attacks with photos, masks or generated images.",
    ]


def is_small(rates: PairRates) -> bool:
    """Whether a group has too few pairs of one kind."""
    return min(rates.false_rejects.total, rates.false_accepts.total) < SMALL


def interval(rate: Rate) -> str:
    """Formats the interval of a rate: "1.20 - 3.40 %"."""
    low, high = rate.interval
    return f"{100 * low:.2f} - {100 * high:.2f}{formatting.SPACE}%" if rate.total else "-"


def _cells(rates: PairRates) -> list[str]:
    return [
        cell
        for rate in rates
        for cell in (
            number(rate.total),
            f"{percent(rate.share)} ({rate.events:,})" if rate.total else "-",
            interval(rate),
        )
    ]
