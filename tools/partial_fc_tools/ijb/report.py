"""Result files: Markdown for people, CSV for spreadsheets, JSON for programs, scores as .npy, the ROC as pictures."""

import io
import json
import os
from collections.abc import Iterable

import numpy as np

from partial_fc.utils.tables import CsvWriter, markdown_table
from partial_fc.utils.text import one_line, plural
from partial_fc_tools.verify.roc_picture import draw_roc

from .evaluate import EmbeddingOptions, Results
from .identification import FPIRS, RANKS
from .protocol import IjbSet

FARS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
WEIGHTS = ("flip", "detector_score", "norm_score")  # the EmbeddingOptions that change the scores
AT_MOST, NEAREST = "1:1", "1:1 (nearest point)"


def result_files(target: str) -> list[str]:
    """Returns the names of the result files; readers wait for the first one, which is written last."""
    return [f"{target}{ending}" for ending in (".json", ".md", ".csv", "_scores.npy", "_roc.png", "_roc.pdf")]


def write_results(folder: str, model: str, ijb: IjbSet, options: EmbeddingOptions, results: Results) -> str:
    """Writes all result files into an empty folder; returns the Markdown text. Raises OSError."""
    title = one_line(f"{ijb.target}: {os.path.basename(model)}")
    images, pairs = ijb.images, ijb.pairs
    counts = {"images": len(images.names), "templates": len(images.template_ids), "pairs": len(pairs.left)}
    sizes = ", ".join(plural(count, name[:-1]) for name, count in counts.items())
    switches = (f"{name.replace('_', ' ')} {'on' if getattr(options, name) else 'off'}" for name in WEIGHTS)
    text = f"{markdown(title, results)}\n{sizes}; {', '.join(switches)}.\n"
    paths = (os.path.join(folder, name) for name in result_files(ijb.target))
    json_path, md_path, csv_path, npy_path, *pictures = paths
    np.save(npy_path, results.scores)
    draw_roc({"": results.roc.curve()}, FARS[0], title, pictures)
    facts = json_text(ijb.target, model, counts, options, results)
    for path, content in ((md_path, text), (csv_path, csv_text(results)), (json_path, facts)):
        with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(content)
    return text


def far_text(far: float) -> str:
    """Formats a FAR: "1e-6", "1e-1"."""
    return f"{far:.0e}".replace("e-0", "e-")


def table_rows(results: Results) -> tuple[dict[str, list[float]], dict[str, list[float | None]]]:
    """Returns the 1:1 rows (TAR at each of FARS) and the 1:N rows (rates at RANKS, then TPIR at FPIRS).

    TPIR is None without unmated probes.
    """
    readings = {AT_MOST: results.roc.at_most, NEAREST: results.roc.nearest}
    pairs = {name: [reading(far).tar for far in FARS] for name, reading in readings.items()}
    searches = {
        f"1:N {name}": [*map(search.rank, RANKS), *(search.tpir or dict.fromkeys(FPIRS)).values()]
        for name, search in results.searches.items()
    }
    return pairs, searches


def markdown(title: str, results: Results) -> str:
    """Returns the tables as Markdown, in percent."""
    genuine, impostor = len(results.roc.genuine), len(results.roc.impostor)
    pair_rows, search_rows = table_rows(results)
    lines = [f"# {title}", "", *_percent_table(["TAR (%) at FAR", *map(far_text, FARS)], pair_rows.items()), ""]
    lines.append(
        f"{plural(genuine, 'genuine pair')}, {plural(impostor, 'impostor pair')}. "
        f'"{AT_MOST}": highest TAR whose FAR does not exceed the given one; "nearest point": as in insightface.'
    )
    for name, reading in ((AT_MOST, results.roc.at_most), (NEAREST, results.roc.nearest)):
        lines += ["", f'Measured FAR of "{name}": {", ".join(f"{reading(far).far:.3g}" for far in FARS)}.']
    few = [far for far in FARS if impostor * far < 1]
    if few:
        lines.append(
            f"There are too few impostor pairs to accept any of them at a FAR of {far_text(max(few))} or below."
        )
    if results.searches:
        ranks, fpirs = [f"rank-{rank}" for rank in RANKS], [f"TPIR at FPIR {fpir}" for fpir in FPIRS]
        lines += ["", *_percent_table(["%", *ranks, *fpirs], search_rows.items()), ""]
        for name, search in results.searches.items():
            if name != "mean":
                lines.append(f"{name}: {search.mated:,} probes with a mate, {search.unmated:,} without.")
    return "\n".join(lines) + "\n"


def _percent_table(heading: list[str], rows: Iterable[tuple[str, list]]) -> list[str]:
    cells = [[name, *("-" if value is None else f"{100 * value:.2f}" for value in values)] for name, values in rows]
    return markdown_table(heading, cells)


def csv_text(results: Results) -> str:
    """Returns all figures as one CSV table of fractions; figures that a row does not have are empty."""
    tars = [f"TAR@FAR={far_text(far)}" for far in FARS]
    rates = [*(f"rank-{rank}" for rank in RANKS), *(f"TPIR@FPIR={fpir}" for fpir in FPIRS)]
    pair_rows, search_rows = table_rows(results)
    rows = [[name, *values, *[None] * len(rates)] for name, values in pair_rows.items()]
    rows += [[name, *[None] * len(tars), *values] for name, values in search_rows.items()]
    text = io.StringIO()
    writer = CsvWriter(text)
    writer.writerow(["protocol", *tars, *rates])
    for name, *values in rows:
        writer.writerow([name, *("" if value is None else f"{value:.6f}" for value in values)])
    return text.getvalue()


def json_text(target: str, model: str, counts: dict[str, int], options: EmbeddingOptions, results: Results) -> str:
    """Returns all figures, and the inputs that they were computed from, as JSON."""
    searches = {
        name: {
            "mated_probes": search.mated,
            "unmated_probes": search.unmated,
            **{f"rank-{rank}": search.rank(rank) for rank in RANKS},
            "tpir_at_fpir": None if search.tpir is None else {str(fpir): rate for fpir, rate in search.tpir.items()},
        }
        for name, search in results.searches.items()
    }
    facts = {
        "target": target,
        "model": model,
        **counts,
        "genuine_pairs": len(results.roc.genuine),
        "impostor_pairs": len(results.roc.impostor),
        **{name: getattr(options, name) for name in WEIGHTS},
        "tar_at_far": {far_text(far): results.roc.at_most(far).tar for far in FARS},
        "measured_far": {far_text(far): results.roc.at_most(far).far for far in FARS},
        "tar_at_nearest_far": {far_text(far): results.roc.nearest(far).tar for far in FARS},
        "measured_nearest_far": {far_text(far): results.roc.nearest(far).far for far in FARS},
        "identification": searches,
        "seconds": {step: round(seconds, 3) for step, seconds in results.seconds.items()},
    }
    return json.dumps(facts, indent=1) + "\n"
