"""partial-fc report card: the model card of a training, whose figures are counted again from the embeddings."""

import json
import math
import re
from functools import cache

import cv2
import numpy as np
import pytest

import made_up_training
from command_line import exit_code
from made_up_training import a_set, a_training
from partial_fc.data.pairs_bin import write_pairs
from partial_fc.data.synthetic.draw import encode_face
from partial_fc.evaluation.verification import Verification, verify
from partial_fc.export.model import FaceModel
from partial_fc.export.model_file import model_files
from partial_fc.training.report import write_report
from partial_fc.training.report.curves_json import read_runs
from partial_fc_tools.inference.origin import files_digest
from partial_fc_tools.report.card_content import Given, card_sections, interval
from partial_fc_tools.report.card_figures import Figures, SetFigures
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
    low, high = np.roots([1 + z2, -(2 * p + z2), p * p]).real[np.argsort(np.roots([1 + z2, -(2 * p + z2), p * p]).real)]
    return f"{100 * max(low, 0):.2f} - {100 * min(high, 1):.2f} %"


def cells(distance, issame, threshold):
    """The cells of a row of rates, counted pair by pair."""
    result = []
    for kind in (True, False):
        wrong = [
            bool(d >= threshold) if kind else bool(d < threshold) for d, same in zip(distance, issame) if same == kind
        ]
        events, total = sum(wrong), len(wrong)
        result += [f"{total}", f"{100 * events / total:.2f} % ({events})", wilson(events, total)]
    return result


def tables(markdown):
    """The rows of the tables of a card: {first cell: other cells}, the last of equal ones."""
    lines = [
        line.strip("| ").split(" | ")
        for line in markdown.replace("\N{NARROW NO-BREAK SPACE}", " ").splitlines()
        if line.startswith("| ")
    ]
    return {first.strip(): [cell.strip() for cell in rest] for first, *rest in lines}


def card(place, *words):
    run = place / "models" / "a run"
    assert exit_code("report", "card", run, "--out", place / "card", "--far", FAR, "--force", *words) == 0
    return (place / "card.md").read_text(), (place / "card.html").read_text()


def test_figures_are_counted_from_the_embeddings(place, truth):
    distance, norms, verification = truth
    text, _ = card(place, "--groups", place / "groups.csv", "--columns", "age")
    rows = tables(text)
    assert rows["val"] == cells(
        distance, ISSAME, threshold := np.sort(distance[~ISSAME])[math.floor(FAR * (~ISSAME).sum())]
    )
    assert f"{threshold:.4f} (cosine above {1 - threshold / 2:.4f})" in text
    accuracy, tar, people = verification.accuracy, verification.tar_at_far, ISSAME.sum()
    cells_of_set = tables(text.partition("## Accuracy")[2].partition("## ")[0])["val"]
    assert cells_of_set[:3] == [f"{PAIRS}", f"{100 * accuracy:.2f} %", wilson(round(accuracy * PAIRS), PAIRS)]
    assert cells_of_set[3:5] == [f"{100 * tar:.2f} %", wilson(round(tar * people), people)]
    assert cells_of_set[-1] == f"{norms.mean():.2f}"
    assert cells_of_set[5] == f"{100 * verification.measured_far:.3f} %"
    assert cells_of_set[6] == f"{100 * verification.tar_interpolated:.2f} %"
    assert "val: too few impostor pairs for FAR 0.001: 60, and it needs 1,000." in text
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
    groups = (place / "groups.csv").read_text().splitlines()[: count + 1]
    (place / "first" / "groups.csv").write_text("\n".join(groups))
    sets = ["--pairs", place / "first" / "val.bin", place / "val.bin"]
    text, _ = card(place, *sets, "--groups", place / "first" / "groups.csv", "--columns", "age")
    threshold = np.sort(distance[:count][~ISSAME[:count]])[math.floor(FAR * (~ISSAME[:count]).sum())]
    rows = tables(text.partition("## Errors at one threshold")[2].partition("## ")[0])
    assert rows["val"] == cells(distance[:count], ISSAME[:count], threshold)
    assert [row for name, row in rows.items() if name.endswith("val.bin")] == [cells(distance, ISSAME, threshold)]
    assert threshold != np.sort(distance[~ISSAME])[math.floor(FAR * (~ISSAME).sum())]  # of the second alone
    untested = text.partition("## Not tested")[2]
    assert "val: false accept rates below 0.033, which 30 pairs" in untested and "val again" not in untested


def test_every_figure_is_shown_in_its_place(place, tmp_path):
    """Each has another value."""
    model = TinyModel()
    model.metadata["rand_mirror"] = "False"
    path, distance, issame = model.write_in_two(tmp_path / "m.onnx"), made_up_training.DISTANCE, made_up_training.ISSAME
    rates, half = PairRates(Rate(3, 40), Rate(5, 300)), PairRates(Rate(1, 20), Rate(2, 200))
    found = SetFigures(
        *(distance, issame, Verification(0.9, 0.01, 1.2, 0.8, 0.001, 0.0007, 0.75), Rate(37, 40), 21.5, rates),
        {0.0: rates, 0.5: half},
    )
    groups = {"young": PairRates(Rate(1, 200), Rate(1, 99)), "old": PairRates(Rate(1, 200), Rate(1, 100))}
    (training,) = read_runs([place / "models" / "a run"])
    training.curves["summary"]["problems"] = {"lfw": ["one", "two"]}
    sections = card_sections(
        *(
            training,
            FaceModel.open(path),
            Given("a", "b", "c", "d"),
            Figures(0.001, 1.1, {"val": found}, {"age": groups}),
        ),
        ["gone.bin"],
    )
    content = {section.key: section.content for section in sections}
    facts = dict(content["model"][0].rows)
    assert files_digest(model_files(path)) in facts["file"] and "without mirror images" in facts["embedding"]
    assert content["model"][1].lines == ["Problem on lfw: one.", "Problem on lfw: two."]
    shares = ["90.00 %", interval(Rate(37, 40)), "80.00 %", interval(Rate(16, 20)), "0.070 %", "75.00 %"]
    (row,) = content["figures"][1].rows
    assert [cell.replace("\N{NARROW NO-BREAK SPACE}", " ") for cell in row] == [
        *("val", "40", *(share.replace("\N{NARROW NO-BREAK SPACE}", " ") for share in shares), "21.50")
    ]
    assert [row[-1] for row in content["threshold"][2].rows] == ["small", ""]
    lines = {chart.key: chart.lines[0].y.tolist() for chart in content["quality"][2:]}
    assert lines == {"false-rejects": [7.5, 5.0], "false-accepts": pytest.approx([5 / 3, 1.0])}
    gone, least, few, *_ = content["untested"][0].lines
    assert "gone.bin" in gone and "below 0.0033, which 300 pairs" in least and "groups young of age" in few


def test_what_is_given_and_what_is_not_tested(place):
    given = ["--data", "drawn *faces*", "--data-license", "CC0", "--license", "MIT", "--use", "tests | only"]
    text, page = card(place, "--groups", place / "groups.csv", "--columns", "age", *given)
    for value in (
        r"drawn \*faces\*",
        "licence of the data, as given | CC0",
        "licence of the model | MIT",
        r"use | tests \| only",
        "backbone.onnx, ",
        "16 numbers",
        "40 updates on 2 ranks",
        "final loss | 3.0000",
    ):
        assert value in text
    untested = text.partition("## Not tested")[2].partition("## ")[0]
    for part in ("other.bin", "below 0.017, which 60 pairs", "groups old \\| \\<b\\>, young of age"):
        assert part in untested
    assert "no groups" not in untested and "no groups were given" in card(place)[0]
    assert page.startswith("<!doctype html>") and "<script" not in page and "old | &lt;b&gt;" in page
    assert [title for title in ("ROC", "False rejects", "False accepts") if f"<h3>{title}</h3>" in page] == [
        *("ROC", "False rejects", "False accepts")
    ]
    for title in re.findall("^## (.*)$", text, re.MULTILINE):
        assert f"<h2>{title}</h2>" in page


def test_a_run_without_sets_says_so(place, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    write_report(a_training(folder=str(run)))
    (run / "settings.json").write_text(json.dumps({"rec": "/nowhere/train.rec", "val_targets": ["val"]}))
    TinyModel().write(run / "backbone.onnx")
    assert exit_code("report", "card", run, "--out", tmp_path / "card") == 0
    text = (tmp_path / "card.md").read_text()
    assert (
        "Not measured: no set of pairs" in text and "/nowhere/val.bin" in text and "data, as given | not given" in text
    )


def test_without_a_set_the_card_has_the_figures_and_problems_of_the_training(place, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    write_report(a_training(folder=str(run), sets={"lfw": a_set(run, problems=["they collapsed"])}))
    (run / "settings.json").write_text(json.dumps({"rec": "/nowhere/train.rec", "val_targets": []}))
    TinyModel().write(run / "backbone.onnx")
    assert exit_code("report", "card", run, "--out", tmp_path / "card") == 0
    text = (tmp_path / "card.md").read_text().replace("\N{NARROW NO-BREAK SPACE}", " ")
    assert "- Problem on lfw: they collapsed." in text
    assert re.search(r"\| lfw +\| +1[ ,]?000 +\| accuracy +\| +0\.9000 +\|", text), text


@pytest.mark.parametrize(
    "words, message",
    [
        (["--columns", "age"], "give the CSV file"),
        (["--groups", "groups.csv", "--columns", "sex"], "no column sex, but same, age, pair"),
        (["--pairs", "none.bin"], "none.bin (validation pairs) does not exist"),
        (["--far", "0.9"], "above 0 and at most 0.5"),
    ],
)
def test_what_is_refused_writes_nothing(words, message, place, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(place)
    assert exit_code("report", "card", "models/a run", "--out", tmp_path / "card", *words) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
