"""Tables and ROC plot of hand-made results."""

import csv
import json
from types import SimpleNamespace

import cv2
import numpy as np

from partial_fc.evaluation.ijb.evaluate import EmbeddingOptions, Results
from partial_fc.evaluation.ijb.identification import Identification
from partial_fc.evaluation.ijb.report import csv_text, draw_roc, json_text, markdown
from partial_fc.evaluation.ijb.verification import FARS

FAR, TAR = np.array([0.001, 0.01, 0.1, 1]), np.array([0.4, 0.5, 0.5, 1])


def results(impostor=1000, searches=None):
    at_most = dict(zip(FARS, (0, 0, 0, 0.4, 0.5, 0.654321)))
    nearest = dict(zip(FARS, (0, 0, 0, 0.45, 0.5, 0.7)))
    roc = SimpleNamespace(
        genuine=range(9), impostor=range(impostor), at_most=at_most.__getitem__, nearest=nearest.__getitem__
    )
    return Results(np.zeros(9, np.float32), roc, searches or {}, {"embedding": 1.23456})


def test_markdown():
    searches = {"G1": Identification(8, 4, {1: 1, 5: 6, 10: 8}, {0.01: 0.0, 0.1: 0.125})}
    lines = markdown("IJBC: model", results(searches=searches)).splitlines()
    assert lines[0] == "# IJBC: model"
    assert "| TAR (%) at FAR | 1e-6 | 1e-5 | 1e-4 | 1e-3 | 1e-2 | 1e-1 |" in lines
    assert "| 1:1 | 0.00 | 0.00 | 0.00 | 40.00 | 50.00 | 65.43 |" in lines
    assert "| 1:1 (nearest point) | 0.00 | 0.00 | 0.00 | 45.00 | 50.00 | 70.00 |" in lines
    assert "| 1:N G1 | 12.50 | 75.00 | 100.00 | 0.00 | 12.50 |" in lines
    assert "G1: 8 probes with a mate, 4 without." in lines
    columns = {line.count("|") for line in lines if line.startswith("|")}
    assert columns == {8, 7}  # six FARs, five rates
    assert "At FAR 1e-4 and below no impostor pair may be accepted: there are too few of them." in lines


def test_the_note_appears_only_with_too_few_pairs():
    assert "too few" not in markdown("x", results(impostor=1_000_000))
    assert "At FAR 1e-6 and below" in markdown("x", results(impostor=999_999))
    assert "At FAR 1e-1 and below" in markdown("x", results(impostor=9))


def test_no_tpir_without_unmated_probes():
    no_unmated = results(searches={"G1": Identification(2, 0, {1: 1, 5: 2, 10: 2}, None)})
    assert "| 1:N G1 | 50.00 | 100.00 | 100.00 | - | - |" in markdown("x", no_unmated)
    row = list(csv.DictReader(csv_text(no_unmated).splitlines()))[-1]
    assert (row["protocol"], row["rank-1"]) == ("1:N G1", "0.500000")
    assert row["TPIR@FPIR=0.01"] == row["TAR@FAR=1e-6"] == ""
    facts = json.loads(json_text("IJBC", "m", {"pairs": 9}, EmbeddingOptions(), no_unmated))
    assert facts["identification"]["G1"]["tpir_at_fpir"] is None and facts["pairs"] == 9


def test_equal_results_give_equal_plots(tmp_path):
    """PNG and PDF; equal results give equal bytes, other results another image."""
    paths = [str(tmp_path / name) for name in ("a.png", "a.pdf", "b.pdf", "c.png")]
    draw_roc(FAR, TAR, "title", paths[:2])
    draw_roc(FAR, TAR, "title", paths[2:3])
    png, pdf, again = (open(path, "rb").read() for path in paths[:3])
    assert pdf == again and png.startswith(b"\x89PNG") and pdf.startswith(b"%PDF")
    draw_roc(FAR, TAR**2, r"$\frac$" + "\udcff.onnx", paths[3:])  # valid in a file name
    before, after = cv2.imread(paths[0]), cv2.imread(paths[3])
    assert before.shape == after.shape and (before != after).any()
