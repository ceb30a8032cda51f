"""Tables and ROC plot of hand-made results."""

import csv
import json
from types import SimpleNamespace

import numpy as np
import pytest

from partial_fc.evaluation.roc import RocPoint
from partial_fc_tools.ijb.evaluate import EmbeddingOptions, Results
from partial_fc_tools.ijb.identification import Identification
from partial_fc_tools.ijb.report import FARS, csv_text, json_text, markdown

FAR, TAR = np.array([0.001, 0.01, 0.1, 1]), np.array([0.4, 0.5, 0.5, 1])


def results(impostor=1000, searches=None):
    at_most = {far: RocPoint(tar, far) for far, tar in zip(FARS, (0, 0, 0, 0.4, 0.5, 0.654321))}
    nearest = {far: RocPoint(tar, 2 * far) for far, tar in zip(FARS, (0, 0, 0, 0.45, 0.5, 0.7))}
    roc = SimpleNamespace(
        genuine=range(9), impostor=range(impostor), at_most=at_most.__getitem__, nearest=nearest.__getitem__
    )
    return Results(np.zeros(9, np.float32), roc, searches or {}, {"embedding": 1.23456})


def test_tables():
    """test_ijb_command.py compares the files with each other."""
    lines = markdown("IJBC: model", results()).splitlines()
    assert "| TAR (%) at FAR | 1e-6 | 1e-5 | 1e-4 | 1e-3 | 1e-2 | 1e-1 |" in lines
    assert "| 1:1 | 0.00 | 0.00 | 0.00 | 40.00 | 50.00 | 65.43 |" in lines
    assert "| 1:1 (nearest point) | 0.00 | 0.00 | 0.00 | 45.00 | 50.00 | 70.00 |" in lines
    no_unmated = results(searches={"G1": Identification(2, 0, {1: 1, 5: 2, 10: 2}, None)})
    assert "| 1:N G1 | 50.00 | 100.00 | 100.00 | - | - |" in markdown("x", no_unmated)
    row = list(csv.DictReader(csv_text(no_unmated).splitlines()))[-1]
    assert (row["protocol"], row["rank-1"]) == ("1:N G1", "0.500000")
    assert "G1: 2 probes with a mate, 0 without." in markdown("x", no_unmated)
    assert row["TPIR@FPIR=0.01"] == row["TAR@FAR=1e-6"] == ""
    facts = json.loads(json_text("IJBC", "m", {"pairs": 9}, EmbeddingOptions(), no_unmated))
    assert facts["identification"]["G1"]["tpir_at_fpir"] is None
    readings = ("tar_at_far", "measured_far", "tar_at_nearest_far", "measured_nearest_far")
    assert [facts[name]["1e-1"] for name in readings] == [0.654321, 0.1, 0.7, 0.2]
    assert (facts["target"], facts["model"], facts["seconds"]) == ("IJBC", "m", {"embedding": 1.235})


@pytest.mark.parametrize("impostor, far", [(1_000_000, None), (999_999, "1e-6"), (1000, "1e-4"), (9, "1e-1")])
def test_the_note_appears_only_with_too_few_pairs(impostor, far):
    text = markdown("x", results(impostor))
    assert ("too few" in text) == bool(far) and (far is None or f"a FAR of {far} or below" in text)
