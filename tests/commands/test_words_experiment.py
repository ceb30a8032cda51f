"""The quick experiment on words, which reuses the runs in its folder, its figures, and the layer's share of a step."""

import json
import shutil

import pytest
from conftest import TORCH, needs_torch


def add_run_with_all_centers(models):
    """Copies a run to the folder for r = 1, with another rank-1, so that the experiment does not train it."""
    full = models.with_name(models.name.replace("r0.1", "r1"))
    shutil.copytree(models, full, ignore=shutil.ignore_patterns("training.log"))
    content = json.loads((full / "words.json").read_text())
    content["key"]["settings"]["sample_ratio"] = "1"
    content["figures"]["rank-1"] += 0.1
    (full / "words.json").write_text(json.dumps(content))


@pytest.mark.slow
@needs_torch
def test_the_experiment_trains_once_and_is_compared(succeed, tmp_path):
    command = [TORCH / "python", "benchmarks/words.py", "--quick"]
    command += ["--root", tmp_path / "words", "--folder", tmp_path / "models"]
    trained = succeed(*command, "--ratios", "0.1")
    (models,) = (tmp_path / "models-quick").iterdir()
    add_run_with_all_centers(models)
    taken = succeed(*command, "--ratios", "1", "0.1", "[0.1,1]")
    full, sampled, halves = taken.stdout.splitlines()[-3:]
    assert sampled.startswith("| 200 | 20 updates | 0 % | 0.1 | 1 |")
    assert trained.stdout.splitlines()[-1] == sampled  # also its seconds
    assert len(list((tmp_path / "models-quick").glob("*/training.log"))) == 2
    assert halves.startswith("| 200 | 20 updates | 0 % | [0.1,1] | 1 |")
    (log,) = (tmp_path / "models-quick").glob("*r[[]0.1,1]*/training.log")
    assert "update 10" in log.read_text()

    where = ["--root", tmp_path / "words-quick", "--folder", tmp_path / "models-quick"]
    figures = succeed(TORCH / "python", "benchmarks/words_figures.py", *where)
    assert full in figures.stdout and sampled in figures.stdout and halves in figures.stdout
    page, picture = tmp_path / "page.md", tmp_path / "words.png"
    page.write_text(figures.stdout)
    succeed(TORCH / "python", "benchmarks/words_picture.py", page, picture)
    assert picture.exists()
    shown = figures.stdout.splitlines()[-2].split(" | ")
    rank1 = [float(line.split(" | ")[8]) for line in (full, sampled)]
    assert float(shown[8].split(" ± ")[0]) == pytest.approx(rank1[1] - rank1[0], abs=0.011)


@pytest.mark.slow
@needs_torch
def test_the_share_of_the_layer(succeed):
    shares = succeed(TORCH / "python", "benchmarks/words_step.py", "--quick")
    rows = [line.strip("| ").split(" | ") for line in shares.stdout.splitlines()[3:]]
    assert [row[:2] for row in rows] == [["200", ratio] for ratio in ("1", "0.3", "0.1", "0.03")]
    assert all(0 < float(row[3].split()[0]) < 100 for row in rows)


@pytest.mark.slow
@needs_torch
def test_forms_of_several_lexemes(succeed, tmp_path):
    succeed(TORCH / "python", "-m", "examples.words", "--quick", "--root", tmp_path / "words")
    where = ["--root", tmp_path / "words", "--folder", tmp_path / "models", "--updates", "10", "--unseen", "20"]
    words = ["-m", "examples.words.several_labels", *where, "batch_size=16", "embedding_size=16"]
    table = succeed(TORCH / "python", *words).stdout.splitlines()[-5:]
    assert table[0].startswith("| labels of a form | rank-1 |") and "| all lexemes | " in table[-1]
    shapes = [json.loads((tmp_path / "models" / f"case{n}-seed0" / "settings.json").read_text()) for n in range(3)]
    assert [each["labels_per_item"] for each in shapes] == [0, 1, 0]
