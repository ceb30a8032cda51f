"""partial-fc report compare: tables and page of several trainings, and hostile files."""

import json
import os
import re

import numpy as np
import pytest

from command_line import exit_code
from made_up_training import a_set, a_training, point
from partial_fc.training.report import curves_json, write_report
from partial_fc.training.report.curves_json import LARGEST_FILE, MOST_LINES, MOST_NAMES, Run, read_runs
from partial_fc.training.results import SERIES, LossPoint
from partial_fc_tools.report.compare import differing, render, results


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
    lines = compare(capsys, *runs).replace("\N{NARROW NO-BREAK SPACE}", "").splitlines()
    rows = {" ".join(cells[:-2]): cells[-2:] for cells in map(str.split, lines)}
    expected = {
        "updates": ["40", "30"],
        "final loss": ["2.5000", "1.2500"],
        "loss": ["arcface", "cosface"],
        "lr": ["-", "0.4"],
        "lfw: accuracy": ["90.00%", "70.00%"],
        "lfw: best accuracy": ["90.00%", "80.00%"],
        "lfw: measured FAR": ["0.067%", "0.067%"],
    }
    assert {name: rows[name] for name in expected} == expected
    assert "seed" not in rows and "numpy" not in rows  # the same in both
    figures = json.loads(compare(capsys, *runs, "--json", "--force"))
    one, two = figures["runs"]["one"], figures["runs"]["two"]
    assert (one["updates"], two["final_loss"], two["sets"]["lfw"]["accuracy"]) == (40, 1.25, 0.7)
    assert figures["differing"]["loss"] == ["arcface", "cosface"] and "seed" not in figures["differing"]


def test_the_page(runs, capsys):
    open("page.html", "w").close()
    assert "page.html already exists" in compare(capsys, *runs, "--out", "page.html", code=2)
    compare(capsys, *runs, "--out", "page.html", "--force")
    page = open("page.html", encoding="utf-8").read()
    assert page.startswith("<!doctype html>") and "one and two" in page
    for title in ("Accuracy on lfw", "Loss", "Learning rate", "Speed"):
        assert f"<h3>{title}</h3>" in page
    assert "Waiting for data" not in page  # not measured
    assert "one: 9 at update 20, 2.5 at update 40" in page
    assert "two: 9 at update 20, 1.25 at update 40" in page


def test_trainings_with_other_figures_and_versions():
    def run(name, far, version, **words):
        summary = {"updates": 1, "ranks": 2, "final_loss": None, "samples_per_second": 1.5, "seconds": 61}
        sets = {"lfw": [point(1)._replace(far=far)._asdict()], "words": [{"num_update": 1, **words, "seconds": 1.0}]}
        series = dict.fromkeys(SERIES, np.empty((0, 2)))
        return Run(name, {}, {**series, "summary": {**summary, "versions": {"torch": version}}, "sets": sets})

    runs = [run("one", 1e-3, "2.9", rank1=0.5, loss=2.0), run("two", 1e-4, "2.10", loss=3.0)]
    rows = {name: cells for name, *cells in results(runs)}
    assert "lfw: TAR at FAR 0.0001, 0.001" in rows
    assert (rows["words: rank1"], rows["words: loss"]) == (["0.5000", "-"], ["2.0000", "3.0000"])
    assert (rows["ranks"], rows["samples per second"], rows["time"][0][0]) == (["2", "2"], ["1.5", "1.5"], "1")
    assert differing(runs) == [["torch", "2.9", "2.10"]]
    assert "<h3>rank1 on words</h3>" in render(runs)
    del runs[1].curves["sets"]["lfw"]
    assert {name: cells for name, *cells in results(runs)}["lfw: best accuracy"][1] == "-"


def test_runs_with_the_same_settings_in_folders_of_the_same_name(tmp_path):
    for group in ("a", "b"):
        write_small_run(tmp_path / group / "run")
    runs = read_runs([str(tmp_path / group / "run") for group in "ab"])
    assert [run.name for run in runs] == ["a/run", "b/run"]
    assert differing(runs) == [] and "All settings and versions are the same." in render(runs)


@pytest.mark.parametrize("name", ["curves.json", "settings.json"])
def test_what_is_missing_is_named(runs, tmp_path, capsys, name):
    (tmp_path / "models" / "two" / name).unlink()
    assert f"models/two has no {name}" in compare(capsys, *runs, code=2)
    assert not (tmp_path / "comparison.html").exists()


POINT = {"num_update": 1, "accuracy": 0.5, "far": 0.1, "tar_at_far": 0.5}
DEEP = "[" * 900 + "]" * 900
HOSTILE = [  # file, keys to the value that is replaced, or none for the whole file; JSON
    *((name, [], text) for name in ("curves.json", "settings.json") for text in ("{", "[1]")),
    ("curves.json", [], "{}"),
    *(("curves.json", ["summary", "updates"], text) for text in ('"1"', "-1", "NaN", "1" + "0" * 400)),
    *(("curves.json", ["summary", name], '"1"') for name in ("ranks", "seconds", "final_loss", "samples_per_second")),
    ("curves.json", ["summary", "versions"], "null"),
    *(
        ("curves.json", ["losses"], text)
        for text in ("3", '["a", "b"]', "[[1, 1e300]]", "[[-1, 1]]", "[[1, [2]]]", DEEP)
    ),
    *(("curves.json", ["sets"], text) for text in ("[]", '{"lfw": [{}]}', "[" * 200_000)),
    ("curves.json", ["sets"], json.dumps({str(number): [] for number in range(101)})),
    *(
        ("curves.json", ["sets"], json.dumps({"lfw": [{**POINT, **figures}]}))
        for figures in ({"accuracy": 2}, {"xnorm": "1"}, {"xnorm": [1]}, {"xnorm": 10**400}, {"num_update": True})
    ),
    *(("curves.json", ["summary", "problems"], text) for text in ("3", '["a"]', '{"lfw": 3}')),
    ("settings.json", ["lr"], "1" * 5000),
]


SUMMARY = {"updates": 1, "ranks": 1, "seconds": 1, "final_loss": 1, "samples_per_second": None, "versions": {}}
CURVES = {"summary": SUMMARY, "losses": [], "speeds": [], "waiting": [], "learning_rates": [], "sets": {"lfw": [POINT]}}


def write_small_run(folder):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "curves.json").write_text(json.dumps(CURVES))
    (folder / "settings.json").write_text('{"lr": 1}')


@pytest.mark.parametrize("name, keys, text", HOSTILE)
def test_hostile_files_are_named(tmp_path, name, keys, text):
    write_small_run(tmp_path)
    path = tmp_path / name
    content = parent = json.loads(path.read_text())
    for key in keys[:-1]:
        parent = parent[key]
    if keys:
        parent[keys[-1]] = "HERE"
        text = json.dumps(content).replace('"HERE"', text)
    path.write_text(text)
    with pytest.raises(ValueError, match=re.escape(f"{path} is damaged")) as error:
        read_runs([str(tmp_path)])
    assert "\n" not in str(error.value) and len(str(error.value)) < 1000


def test_as_many_sets_and_settings_as_the_limits(tmp_path):
    write_small_run(tmp_path)
    sets = {f"set {number}": [{**POINT, "accuracy": 1, "num_update": number}] for number in range(100)}
    (tmp_path / "curves.json").write_text(json.dumps({**CURVES, "sets": sets}))
    names = {f"name {number}": number for number in range(MOST_NAMES)}
    (tmp_path / "settings.json").write_text(json.dumps(names))
    (run,) = read_runs([str(tmp_path)])
    assert run.curves["sets"] == sets and run.settings == {name: str(number) for name, number in names.items()}
    (tmp_path / "settings.json").write_text(json.dumps({**names, "last": 0}))
    with pytest.raises(ValueError, match=f"{MOST_NAMES + 1} names"):
        read_runs([str(tmp_path)])
    os.truncate(tmp_path / "settings.json", LARGEST_FILE + 1)
    with pytest.raises(ValueError, match="bytes"):
        read_runs([str(tmp_path)])


@pytest.mark.parametrize("lines, kept", [(30, 30), (31, 16)])
def test_the_curves_of_a_long_training_can_be_read(lines, kept, tmp_path, monkeypatch):
    monkeypatch.setattr(curves_json, "MOST_LINES", 30)
    points = [LossPoint(10**7 + line, line / 7, line / 3, 1 / (line + 3), line / 11) for line in range(lines)]
    write_report(a_training(folder=str(tmp_path), losses=points))
    # With as many lines as are kept, the file is far below the size that is read.
    empty = len(json.dumps(a_training().summary()))
    assert (os.path.getsize(tmp_path / "curves.json") - empty) / kept < LARGEST_FILE / MOST_LINES
    (tmp_path / "settings.json").write_text("{}")
    (run,) = read_runs([str(tmp_path)])
    for name, field in SERIES.items():
        assert len(run.curves[name]) == kept
        assert run.curves[name][-1].tolist() == [points[-1].num_update, getattr(points[-1], field)]


def test_odd_files_that_are_shown(tmp_path, monkeypatch, capsys):
    """Hostile names, a training that diverged, and more points and longer texts than any training has."""
    monkeypatch.chdir(tmp_path)
    name, folder = "</h3><script>$x^{\x1b[2J\u202e", tmp_path / "two"
    write_small_run(tmp_path / "one")
    write_small_run(folder)
    content = json.loads((folder / "curves.json").read_text())
    content["summary"] |= {"final_loss": float("nan"), "versions": {name: [name]}}
    content["losses"] = [[update, update % 7] for update in range(10**4)] + [[10**4, float("inf")]]
    content["speeds"] = [[1, 1e99], [2, -1e99]]
    content["sets"] = {name: [POINT], "own": [{"num_update": 1, "loss": float("nan")}]}
    (folder / "curves.json").write_text(json.dumps(content))
    (folder / "settings.json").write_text(f'{{"lr": {DEEP}, {json.dumps(name)}: "{"a" * 10**6}"}}')
    shown = compare(capsys, "one", "two")
    page = open("comparison.html", encoding="utf-8").read()
    assert "\x1b" not in page and "\u202e" not in page and "><script" not in page
    assert "&lt;/h3&gt;&lt;script&gt;$x^{\\x1b[2J\\u202e" in page
    assert "default-src 'none'; " in page and len(page) < 200_000 and len(shown) < 50_000


def test_which_runs_are_refused(runs, capsys):
    assert "two trainings" in compare(capsys, runs[0], code=2)
    assert "each once" in compare(capsys, *runs, f"{runs[0]}/", code=2)
    assert "models/none" in compare(capsys, runs[0], "models/none", code=2)
