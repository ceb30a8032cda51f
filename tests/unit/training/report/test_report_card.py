"""partial-fc report card: the figures of a model card, against slow counts from the embeddings."""

import json
import math
import re
from functools import cache
from types import SimpleNamespace

import cv2
import numpy as np
import pytest

from command_line import exit_code
from made_up_training import DISTANCE, a_set, a_training
from made_up_training import ISSAME as MADE_UP_ISSAME
from partial_fc.data.pairs_bin import write_pairs
from partial_fc.data.synthetic.draw import encode_face
from partial_fc.evaluation.verification import Verification, verify
from partial_fc.export.model import FaceModel
from partial_fc.export.model_file import model_files
from partial_fc.training.report import write_report
from partial_fc.training.report.curves_json import read_runs
from partial_fc_tools.inference.origin import files_digest
from partial_fc_tools.report.card_content import card_sections
from partial_fc_tools.report.card_figures import Figures, SetFigures
from partial_fc_tools.report.card_pages import to_html, to_markdown
from partial_fc_tools.verify.pair_rates import PairRates, Rate
from tiny_onnx import TinyModel

PAIRS, FAR = 120, 0.1
PEOPLE = [(pair % 8, (pair + pair % 2) % 8) for pair in range(PAIRS)]
ISSAME = np.array([a == b for a, b in PEOPLE])
GROUPS = ["young" if pair % 3 else "old | <b>" for pair in range(PAIRS)]


@pytest.fixture(scope="module")
def images():
    """The 2P images, of which 72 differ."""
    drawn = cache(lambda person, number: encode_face(1, person, number))
    return [drawn(person, (pair + side) % 9) for pair, both in enumerate(PEOPLE) for side, person in enumerate(both)]


@pytest.fixture(scope="module")
def place(tmp_path_factory, images):
    """A run with a model, and its validation set of drawn faces; the other one is missing."""
    place = tmp_path_factory.mktemp("card")
    run = place / "models" / "a run"
    run.mkdir(parents=True)
    write_pairs(place / "val.bin", images, ISSAME)
    write_report(a_training(folder=str(run), updates=40))
    settings = {"rec": str(place / "train.rec"), "val_targets": ["val", "other"], "dataset": "own", "num_classes": 70}
    (run / "settings.json").write_text(json.dumps(settings))
    TinyModel().write(run / "backbone.onnx")
    rows = [f"{int(same)},{group},{number}" for number, (same, group) in enumerate(zip(ISSAME, GROUPS))]
    (place / "groups.csv").write_text("\n".join(["same,age,pair", *rows]))
    return place


@pytest.fixture(scope="module")
def truth(images):
    """Squared distances (P,), norms (2P,), and the accuracy."""
    model = TinyModel()

    @cache
    def embedding(encoded):
        image = cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR)[:, :, ::-1]
        return (model.slow(image) + model.slow(image[:, ::-1])) / 2

    rows = np.stack([embedding(image) for image in images])
    norms = np.linalg.norm(rows, axis=1)
    unit = rows / norms[:, None]
    return np.sum((unit[0::2] - unit[1::2]) ** 2, axis=1), norms, verify(unit, ISSAME)


def wilson(events, total):
    """Wilson's interval in percent, as the roots of (p - x)^2 = z^2 x (1 - x) / n."""
    p, z2 = events / total, 1.959964**2 / total
    low, high = sorted(np.roots([1 + z2, -(2 * p + z2), p * p]).real)
    return f"{100 * max(low, 0):.2f} - {100 * min(high, 1):.2f} %"


def cells(distance, issame, threshold):
    """The cells of a row of rates."""
    result = []
    for wrong in (distance[issame] >= threshold, distance[~issame] < threshold):
        events, total = sum(wrong.tolist()), len(wrong)
        result += [f"{total}", f"{100 * events / total:.2f} % ({events})", wilson(events, total)]
    return result


def tables(markdown, heading=""):
    """Rows of the tables below a heading: {first cell: other cells}, the last one of equal first cells."""
    part = markdown.partition(f"## {heading}")[2].partition("## ")[0] if heading else markdown
    rows = [line.strip("| ").split(" | ") for line in plain(part).splitlines() if line.startswith("| ")]
    return {first.strip(): [cell.strip() for cell in rest] for first, *rest in rows}


def plain(text):
    return text.replace("\N{NARROW NO-BREAK SPACE}", " ")


def card(place, *words):
    run = place / "models" / "a run"
    assert exit_code("report", "card", run, "--out", place / "card", "--far", FAR, "--force", *words) == 0
    return (place / "card.md").read_text(), (place / "card.html").read_text()


def test_figures_are_counted_from_the_embeddings(place, truth):
    distance, norms, verification = truth
    text, _ = card(place, "--groups", place / "groups.csv", "--columns", "age")
    threshold = np.sort(distance[~ISSAME])[math.floor(FAR * (~ISSAME).sum())]
    rows = tables(text)
    assert rows["val"] == cells(distance, ISSAME, threshold)
    assert f"{threshold:.4f} (cosine above {1 - threshold / 2:.4f})" in text
    accuracy, tar, people = verification.accuracy, verification.tar_at_far, ISSAME.sum()
    assert tables(text, "Accuracy")["val"] == [
        *(f"{PAIRS}", f"{100 * accuracy:.2f} %", wilson(round(accuracy * PAIRS), PAIRS)),
        *(f"{100 * tar:.2f} %", wilson(round(tar * people), people), f"{100 * verification.measured_far:.3f} %"),
        *(f"{100 * verification.tar_interpolated:.2f} %", f"{norms.mean():.2f}"),
    ]
    assert "val: too few impostor pairs for FAR 0.001: 60" in text
    young = np.array(GROUPS) == "young"
    assert rows["young"] == [*cells(distance[young], ISSAME[young], threshold), "small"]
    assert rows[r"old \| \<b\>"] == [*cells(distance[~young], ISSAME[~young], threshold), "small"]
    for share in (0, 20, 50):
        unique = np.unique(norms.round(9))  # an image in several pairs counts once
        lowest = unique[math.floor(share * len(unique) / 100)]
        kept = np.minimum(norms[0::2], norms[1::2]).round(9) >= lowest
        assert rows[f"{share} %"] == cells(distance[kept], ISSAME[kept], threshold)


def test_all_sets_have_the_threshold_of_the_first_one(place, images, truth):
    distance, count = truth[0], 60
    (place / "first").mkdir()
    write_pairs(place / "first" / "val.bin", images[: 2 * count], ISSAME[:count])
    text, _ = card(place, "--pairs", place / "first" / "val.bin", place / "val.bin")
    threshold, other = (
        np.sort(part[~issame])[math.floor(FAR * (~issame).sum())]
        for part, issame in ((distance[:count], ISSAME[:count]), (distance, ISSAME))
    )
    rows = tables(text, "Errors at one threshold")
    assert rows["val"] == cells(distance[:count], ISSAME[:count], threshold) and threshold != other
    assert [row for name, row in rows.items() if name.endswith("val.bin")] == [cells(distance, ISSAME, threshold)]


def test_every_figure_is_in_its_cell(place, tmp_path):
    model = TinyModel()
    model.metadata["rand_mirror"] = "False"
    path = model.write_in_two(tmp_path / "m.onnx")
    rates, half = PairRates(Rate(3, 40), Rate(5, 300)), PairRates(Rate(1, 20), Rate(2, 200))
    verification = Verification(0.9, 0.01, 1.2, 0.8, 0.001, 0.0007, 0.75)
    of_set = SetFigures(DISTANCE, MADE_UP_ISSAME, verification, Rate(37, 40), 21.5, rates, {0.0: rates, 0.5: half})
    groups = {"young": PairRates(Rate(1, 200), Rate(1, 99)), "old": PairRates(Rate(1, 200), Rate(1, 100))}
    figures = Figures(0.001, 1.1, {"val": of_set}, {"age": groups})
    (training,) = read_runs([place / "models" / "a run"])
    training.curves["summary"]["problems"] = {"lfw": ["one", "two"]}
    given = SimpleNamespace(data="data", data_license="CC0", license="MIT", use="tests")
    sections = card_sections(training, FaceModel.open(path), given, figures, ["gone.bin"])
    text, page = to_markdown("run", sections), plain(to_html("run", sections))
    facts, size = tables(text, "Model"), sum(file.stat().st_size for file in tmp_path.iterdir())
    assert f"{size:,} bytes, SHA-256 {files_digest(model_files(path))}" in facts["file"][0]
    assert "without mirror images" in facts["embedding"][0] and facts["use"] == ["tests"]
    assert facts["licence of the model"] == ["MIT"] and facts["training"] == ["40 updates on 2 ranks"]
    assert tables(text, "Training data")["licence of the data, as given"] == ["CC0"]
    assert "- Problem on lfw: one.\n- Problem on lfw: two." in text
    shares = ["90.00 %", wilson(37, 40), "80.00 %", wilson(16, 20), "0.070 %", "75.00 %"]
    assert tables(text, "Accuracy")["val"] == ["40", *shares, "21.50"]
    rows = tables(text, "Errors at one threshold")
    assert rows["young"][-1] == "small" and rows["old"][-1] != "small"
    assert "val: 7.5 at % of images rejected 0, 5 at % of images rejected 50;" in page
    assert "val: 1.66667 at % of images rejected 0, 1 at % of images rejected 50;" in page
    untested = text.partition("## Not tested")[2]
    assert "gone.bin" in untested and "below 0.0033, which 300 pairs" in untested
    assert "groups young of age" in untested and "no groups" not in untested


def test_what_is_given_is_shown_as_text(place):
    text, page = card(place, "--groups", place / "groups.csv", "--data", "drawn *faces*", "--use", "tests | only")
    assert r"drawn \*faces\*" in text and r"use | tests \| only" in text
    assert page.startswith("<!doctype html>") and "<script" not in page and "old | &lt;b&gt;" in page
    assert "other.bin" in text.partition("## Not tested")[2]
    for title in ("ROC", "False rejects", "False accepts"):
        assert f"<h3>{title}</h3>" in page
    for title in re.findall("^## (.*)$", text, re.MULTILINE):
        assert f"<h2>{title}</h2>" in page


def test_without_a_set_the_card_has_the_figures_and_problems_of_the_training(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    TinyModel().write(run / "backbone.onnx")
    (run / "settings.json").write_text(json.dumps({"rec": "/nowhere/train.rec", "val_targets": ["val"]}))

    def text_of_card(**training):
        write_report(a_training(folder=str(run), **training))
        assert exit_code("report", "card", run, "--out", tmp_path / "card", "--force") == 0
        return plain((tmp_path / "card.md").read_text())

    text = text_of_card(sets={"lfw": a_set(run, problems=["they collapsed"])})
    assert "- Problem on lfw: they collapsed." in text and "/nowhere/val.bin" in text
    assert re.search(r"\| lfw +\| +1,000 +\| accuracy +\| +0\.9000 +\|", text), text
    assert "no groups were given" in text and "data, as given | not given" in text
    assert "Not measured" in text_of_card()


@pytest.mark.parametrize(
    "words, message",
    [
        (["--columns", "age"], "--groups"),
        (["--groups", "groups.csv", "--columns", "sex"], "no column sex"),
        (["--pairs", "none.bin"], "none.bin"),
        (["--far", "0.9"], "at most 0.5"),
    ],
)
def test_what_is_refused_writes_nothing(words, message, place, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(place)
    assert exit_code("report", "card", "models/a run", "--out", tmp_path / "card", *words) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
