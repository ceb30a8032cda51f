"""partial-fc report compare: tables and page of several trainings."""

import json

import pytest

from command_line import exit_code
from made_up_training import a_set, a_training, point
from partial_fc.training.report import write_report
from partial_fc.training.report.curves_json import read_runs
from partial_fc.training.results import LossPoint


def write_run(folder, last, updates=40, accuracies=(0.6, 0.9), **settings):
    """Writes what a training leaves in its folder."""
    folder.mkdir(parents=True)
    points = [point(20 * number, accuracy) for number, accuracy in enumerate(accuracies, start=1)]
    losses = [LossPoint(20, 9.0, 700.0, None, 0.1), LossPoint(40, last, 900.0, None, 0.01)]
    write_report(a_training(folder=str(folder), updates=updates, losses=losses, sets={"lfw": a_set(folder, points)}))
    (folder / "settings.json").write_text(json.dumps({"seed": 0, "loss": "arcface", **settings}))


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "models" / "one", 2.5)
    write_run(tmp_path / "models" / "two", 1.25, updates=30, accuracies=(0.8, 0.7), loss="cosface", lr=0.4)
    return ["models/one", "models/two"]


def compare(capsys, *words, code=0):
    assert exit_code("report", "compare", *words) == code
    printed = capsys.readouterr()
    return printed.err if code else printed.out


def test_the_tables(runs, capsys):
    lines = compare(capsys, *runs).splitlines()
    rows = {" ".join(cells[:-2]): cells[-2:] for cells in map(str.split, lines)}
    assert rows["updates"] == ["40", "30"] and rows["final loss"] == ["2.5000", "1.2500"]
    assert rows["loss"] == ["arcface", "cosface"] and rows["lr"] == ["-", "0.4"]
    assert "seed" not in rows and "numpy" not in rows  # the same in both
    (accuracy,) = [line.split() for line in lines if line.startswith("lfw: accuracy")]
    assert accuracy == ["lfw:", "accuracy", "90.00", "%", "70.00", "%"]
    (best,) = [line.split() for line in lines if line.startswith("lfw: best accuracy")]
    assert best[3:] == ["90.00", "%", "80.00", "%"]


def test_the_page(runs, capsys):
    compare(capsys, *runs, "--out", "page.html")
    page = open("page.html", encoding="utf-8").read()
    assert page.startswith("<!doctype html>") and "one and two" in page
    for title in ("Accuracy on lfw", "Loss", "Learning rate", "Speed"):
        assert f"<h3>{title}</h3>" in page
    assert "Waiting for data" not in page  # not measured
    assert "one: 9 at update 20, 2.5 at update 40" in page
    assert "two: 9 at update 20, 1.25 at update 40" in page


def test_an_existing_page_is_kept_without_force(runs, capsys):
    open("comparison.html", "w").close()
    assert "comparison.html already exists" in compare(capsys, *runs, code=2)
    compare(capsys, *runs, "--force")


def test_names_distinguish_the_runs(tmp_path):
    for group in ("a", "b"):
        write_run(tmp_path / group / "run", 1.0)
    assert [run.name for run in read_runs([str(tmp_path / group / "run") for group in "ab"])] == ["a/run", "b/run"]


def test_the_same_settings(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two", "three"):
        write_run(tmp_path / name, 1.0)
    assert "arcface" not in compare(capsys, "one", "two", "three")
    assert "All settings and versions are the same." in open("comparison.html", encoding="utf-8").read()


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("curves.json", None, "models/two has no curves.json: give an output folder; the first verification writes it"),
        ("curves.json", "{", "curves.json is not of this version or damaged: "),
        ("curves.json", "{}", "curves.json is not of this version or damaged: KeyError('summary')"),
        (
            "curves.json",
            '{"losses": [], "speeds": [], "waiting": [], "learning_rates": [], "summary": {}}',
            "damaged: ",
        ),
        ("settings.json", None, "has no settings.json"),
        ("settings.json", "[1]", "it is not a JSON object"),
    ],
)
def test_what_is_missing_or_damaged_is_named(runs, tmp_path, capsys, name, text, message):
    path = tmp_path / "models" / "two" / name
    path.unlink()
    if text is not None:
        path.write_text(text)
    assert message in compare(capsys, *runs, code=2)
    assert not (tmp_path / "comparison.html").exists()


def test_one_run_is_too_few(runs, capsys):
    assert "two trainings or more" in compare(capsys, runs[0], code=2)
    assert "each once" in compare(capsys, *runs, f"{runs[0]}/", code=2)
    assert "models/none: No such file" in compare(capsys, runs[0], "models/none", code=2).replace("/curves.json", "")
