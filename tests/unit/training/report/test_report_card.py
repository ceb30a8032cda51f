"""partial-fc report card: each figure of a model card in its cell; tests/tools/verify checks the figures."""

import json
import re
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest

from command_line import exit_code
from made_up_training import a_set, a_training
from partial_fc.data.pairs_bin import write_pairs
from partial_fc.data.synthetic.draw import encode_face
from partial_fc.evaluation.verification import Verification
from partial_fc.export.model import FaceModel
from partial_fc.export.model_file import model_files
from partial_fc.training.report import write_report
from partial_fc.training.report.curves_json import read_runs
from partial_fc_tools.inference.origin import files_digest
from partial_fc_tools.report.card_content import card_sections
from partial_fc_tools.report.card_figures import SetFigures
from partial_fc_tools.report.card_pages import to_html, to_markdown
from partial_fc_tools.verify.command import verify_model
from partial_fc_tools.verify.pair_rates import (
    Rate,
    correct_pairs,
    pair_rates,
    rates_by_group,
    rates_by_rejection,
    shared_threshold,
)
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
def measured(place, images):
    """The verification, squared distances (P,), and norms (2P,)."""
    model = FaceModel.open(place / "models" / "a run")
    verification, distance, embeddings = verify_model(model, images, ISSAME, "val", 64)
    return verification, distance, np.linalg.norm(embeddings, axis=1)


def interval(rate):
    return f"{100 * rate.interval[0]:.2f} - {100 * rate.interval[1]:.2f} %"


def cells(rates):
    """The cells of a row of rates."""
    return [cell for r in rates for cell in (f"{r.total}", f"{100 * r.share:.2f} % ({r.events})", interval(r))]


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


def test_a_card_has_the_figures_of_the_embeddings(place, images, measured, capsys):
    verification, distance, norms = measured
    text, _ = card(place, "--groups", place / "groups.csv", "--columns", "age")
    threshold, rows = shared_threshold(distance, ISSAME, FAR), tables(text)
    assert rows["val"] == cells(pair_rates(distance, ISSAME, threshold))
    assert f"{threshold:.4f} (cosine above {1 - threshold / 2:.4f})" in text
    row = tables(text, "Accuracy")["val"]
    assert row[:3] == [
        f"{PAIRS}",
        f"{100 * verification.accuracy:.2f} %",
        interval(correct_pairs(distance, ISSAME, 10)),
    ]
    assert row[3] == f"{100 * verification.tar_at_far:.2f} %" and row[-1] == f"{norms.mean():.2f}"
    capsys.readouterr()
    card(place, "--json")
    figures = json.loads(capsys.readouterr().out)["sets"]
    assert figures["val"] == pytest.approx(verification._asdict())
    assert "val: too few impostor pairs for FAR 0.001: 60" in text and "val, independently" not in text
    for group, rates in rates_by_group(distance, ISSAME, GROUPS, threshold).items():
        assert rows[re.sub("([<>|])", r"\\\1", group)] == [*cells(rates), "small"]
    for share, rates in rates_by_rejection(distance, ISSAME, norms, images, threshold, [0, 0.2, 0.5]).items():
        assert rows[f"{100 * share:.0f} %"] == cells(rates)


def test_all_sets_have_the_threshold_of_the_first_one(place, images, measured):
    _, distance, _ = measured
    (place / "first").mkdir()
    write_pairs(place / "first" / "val.bin", images[: PAIRS // 2 * 2], ISSAME[: PAIRS // 2])
    text, _ = card(place, "--pairs", place / "first" / "val.bin", place / "val.bin")
    threshold = shared_threshold(distance[: PAIRS // 2], ISSAME[: PAIRS // 2], FAR)
    (row,) = [row for name, row in tables(text, "Errors at one threshold").items() if name.endswith("val.bin")]
    assert row == cells(pair_rates(distance, ISSAME, threshold))
    assert threshold != shared_threshold(distance, ISSAME, FAR)


def test_every_figure_is_in_its_cell(place, tmp_path):
    """100 pairs of each kind are enough for a group, 99 are not."""
    model = TinyModel()
    model.metadata["rand_mirror"] = "False"
    path = model.write_in_two(tmp_path / "m.onnx")
    issame, rng = np.arange(399) % 2 == 0, np.random.default_rng(3)
    distance, norms = rng.uniform(0, 3, 399) + ~issame, rng.uniform(1, 9, 798)
    images = [b"%d" % image for image in range(798)]
    verification = Verification(0.9, 0.01, 1.2, 0.8, 0.001, 0.0007, 0.75)
    sets = {"val": SetFigures(images, issame, distance, norms, verification)}
    groups = {"age": ["old"] * 200 + ["young"] * 199}
    (training,) = read_runs([place / "models" / "a run"])
    training.curves["summary"]["problems"] = {"lfw": ["one", "two"]}
    training.curves["sets"]["val"] = []
    args = SimpleNamespace(data="data", data_license="CC0", license="MIT", use="tests", far=0.1)
    sections = card_sections(training, FaceModel.open(path), args, sets, groups, ["gone.bin"])
    text, page = to_markdown("run", sections), plain(to_html("run", sections))
    facts, size = tables(text, "Model"), sum(file.stat().st_size for file in tmp_path.iterdir())
    assert f"{size:,} bytes, SHA-256 {files_digest(model_files(path))}" in facts["file"][0]
    assert "without mirror images" in facts["embedding"][0] and facts["use"] == ["tests"]
    assert facts["licence of the model"] == ["MIT"] and facts["training"] == ["40 updates on 2 ranks"]
    assert tables(text, "Training data")["licence of the data, as given"] == ["CC0"]
    assert "- Problem on lfw: one.\n- Problem on lfw: two." in text
    tar = ["80.00 %", interval(Rate(160, 200)), "0.070 %", "75.00 %"]
    correct = interval(correct_pairs(distance, issame, 10))
    assert tables(text, "Accuracy")["val"] == ["399", "90.00 %", correct, *tar, f"{norms.mean():.2f}"]
    rows = tables(text, "Errors at one threshold")
    assert rows["young"][-1] == "small" and rows["old"][-1] != "small"
    threshold = shared_threshold(distance, issame, 0.1)
    first, last = rates_by_rejection(distance, issame, norms, images, threshold, [0, 0.5]).values()
    for all_pairs, half in zip(first, last):
        x = "at % of images rejected"
        assert f"val: {100 * all_pairs.share:.6g} {x} 0, {100 * half.share:.6g} {x} 50;" in page
    untested = text.partition("## Not tested")[2]
    assert (
        "gone.bin" in untested
        and "val, independently" in untested
        and "below 0.005, which 199 impostor pairs" in untested
    )
    assert "groups young of age" in untested and "no groups" not in untested


@pytest.mark.parametrize(
    "dataset, words",
    [
        ("demo", ("aligned faces of", "the same person", "of different people", "Search among many people")),
        ("glyphs", ("images of", "the same class", "of different classes", "Search among many classes")),
    ],
)
def test_the_words_are_those_of_the_set(place, dataset, words):
    path = place / "models" / "a run" / "settings.json"
    saved = path.read_text()
    path.write_text(json.dumps({**json.loads(saved), "dataset": dataset}))
    text, _ = card(place, "--pairs", place / "val.bin")
    path.write_text(saved)
    assert [word for word in words if word not in text] == []
    assert dataset == "demo" or not re.search(r"\b(person|people|faces?)\b", text)


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
    assert "- Problem on lfw: they collapsed." in text and "The set val.bin of" in text and "nowhere" not in text
    assert re.search(r"\| lfw +\| +1,000 +\| accuracy +\| +0\.9000 +\|", text), text
    assert "no groups were given" in text and "data, as given | not given" in text
    assert "Not measured" in text_of_card()
    (run / "settings.json").write_text(json.dumps({"task": "words:Words"}))
    assert "Items unlike the ones in these sets" in text_of_card()


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
