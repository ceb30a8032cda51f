"""Reports of a training: report.html and curves.png for people, summary.json and curves.json for programs."""

import json
import logging
import os

from partial_fc.export.torch_files import WEIGHTS
from partial_fc.training.results import TrainingResult
from partial_fc.utils.atomic_io import replace_file
from partial_fc.utils.garbage import infrequent_gc

from .charts import training_charts
from .curves_json import write_curves
from .drawing import write_png
from .page import render
from .readme import readme


@infrequent_gc()
def write_results(result: TrainingResult) -> None:
    """Writes all files; ``curves.png`` shows the loss and the first figure of each validation set.

    README.md is written beside ``model.safetensors`` only, which MXNet's trainer does not write.

    Raises:
        OSError, ValueError: A file cannot be written, or a validation set cannot be read again.
    """
    summary = json.dumps(result.summary(), indent=2) + "\n"
    replace_file(os.path.join(result.folder, "summary.json"), [summary.encode()])
    keys = {"losses", *(set_result.evaluation.figures[0] for set_result in result.sets.values())}
    charts = [chart for chart in training_charts(result) if chart.key in keys]
    write_png(os.path.join(result.folder, "curves.png"), result.title, charts)
    if os.path.exists(os.path.join(result.folder, WEIGHTS)):
        replace_file(os.path.join(result.folder, "README.md"), [readme(result).encode("utf-8", "replace")])
    write_report(result)


def write_report(result: TrainingResult) -> None:
    """Writes ``report.html`` and ``curves.json``; the training may still be running.

    Raises:
        OSError, ValueError: As `write_results`.
    """
    # A path in the settings may contain bytes that are not UTF-8.
    replace_file(os.path.join(result.folder, "report.html"), [render(result).encode("utf-8", "replace")])
    write_curves(result)


def try_report(result: TrainingResult) -> None:
    """Writes the report, or logs a warning: a failed report must not end the training, and the next one may succeed."""
    try:
        write_report(result)
    except (OSError, ValueError) as error:
        logging.warning("the report of update %d was not written: %s", result.updates, error)
