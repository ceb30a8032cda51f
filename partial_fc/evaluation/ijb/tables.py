"""Results as Markdown for people, CSV for spreadsheets and JSON for programs."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from partial_fc.utils.tables import markdown_table
from partial_fc.utils.text import plural

from .embedding import How
from .evaluate import Results
from .identification import FPIRS, RANKS, Identification
from .verification import FARS

AT_MOST, NEAREST = "1:1", "1:1 (nearest point)"


def far_text(far: float) -> str:
    """ "1e-6", "1e-1"."""
    return f"{far:.0e}".replace("e-0", "e-")


def pair_rows(results: Results) -> dict[str, list[float]]:
    """The rows of 1:1, a TAR for each of FARS."""
    return {
        AT_MOST: [results.at_most[far] for far in FARS],
        NEAREST: [results.nearest[far] for far in FARS],
    }


def search_rows(results: Results) -> dict[str, list[float | None]]:
    """The rows of 1:N: RANKS, then TPIR for each of FPIRS, None where there is none."""
    return {f"1:N {name}": rates(found) for name, found in results.searches.items()}


def rates(found: Identification) -> list[float | None]:
    """RANKS, then FPIRS."""
    tpir = found.tpir
    return [*map(found.rank, RANKS), *(None if tpir is None else tpir[fpir] for fpir in FPIRS)]


def markdown(title: str, results: Results) -> str:
    """The tables, in percent."""
    lines = [f"# {title}", ""]
    lines += grid(["TAR (%) at FAR", *map(far_text, FARS)], pair_rows(results))
    lines += ["", *notes(results)]
    if results.searches:
        ranks, fpirs = [f"rank-{rank}" for rank in RANKS], [f"TPIR at FPIR {fpir}" for fpir in FPIRS]
        lines += ["", *grid(["%", *ranks, *fpirs], search_rows(results)), ""]
        for name, found in results.searches.items():
            if name != "mean":
                lines.append(f"{name}: {found.mated:,} probes with a mate, {found.unmated:,} without.")
    return "\n".join(lines) + "\n"


def notes(results: Results) -> list[str]:
    """What a reader of the 1:1 table has to know."""
    pairs = f"{plural(results.genuine, 'true pair')}, {plural(results.impostor, 'false pair')}."
    lines = [f'{pairs} "{AT_MOST}": FAR at most as said; "nearest point": as insightface reads the curve.']
    if results.impostor * FARS[0] < 1:
        few = next((far for far in FARS[::-1] if results.impostor * far < 1), FARS[0])
        lines.append(f"At FAR {far_text(few)} and below not a single false pair is allowed: there are too few.")
    return lines


def grid(head: list[str], rows: dict[str, Any]) -> list[str]:
    """A Markdown table of shares in percent."""
    cells = [[name, *("-" if value is None else f"{100 * value:.2f}" for value in rows[name])] for name in rows]
    return markdown_table(head, cells)


def csv_text(results: Results) -> str:
    """One table of everything, shares from 0 to 1; a cell is empty where a row has no such figure."""
    tars, ranks = [f"TAR@FAR={far_text(far)}" for far in FARS], [f"rank-{rank}" for rank in RANKS]
    tpirs = [f"TPIR@FPIR={fpir}" for fpir in FPIRS]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["protocol", *tars, *ranks, *tpirs])
    for name, values in pair_rows(results).items():
        writer.writerow([name, *(f"{value:.6f}" for value in values), *[""] * len(ranks + tpirs)])
    for name, shares in search_rows(results).items():
        writer.writerow([name, *[""] * len(tars), *("" if share is None else f"{share:.6f}" for share in shares)])
    return text.getvalue()


def json_text(target: str, model: str, counts: dict[str, int], how: How, results: Results) -> str:
    """All figures, and what they were made from."""
    searches = {
        name: {
            "mated_probes": found.mated,
            "unmated_probes": found.unmated,
            **{f"rank-{rank}": found.rank(rank) for rank in RANKS},
            "tpir_at_fpir": None if found.tpir is None else {str(fpir): rate for fpir, rate in found.tpir.items()},
        }
        for name, found in results.searches.items()
    }
    facts = {
        "target": target,
        "model": model,
        **counts,
        "genuine_pairs": results.genuine,
        "impostor_pairs": results.impostor,
        "flip": how.flip,
        "detector_score": how.detector_score,
        "norm_score": how.norm_score,
        "tar_at_far": {far_text(far): tar for far, tar in results.at_most.items()},
        "tar_at_nearest_far": {far_text(far): tar for far, tar in results.nearest.items()},
        "identification": searches,
        "seconds": {part: round(seconds, 3) for part, seconds in results.seconds.items()},
    }
    return json.dumps(facts, indent=1) + "\n"
