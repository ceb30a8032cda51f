"""The commands of docs/speakers.md, on a few speakers and two ranks."""

import shutil

import pytest
from conftest import IN_TURN, TORCH, needs_torch

pytestmark = [
    pytest.mark.slow,
    needs_torch,
    pytest.mark.skipif(not shutil.which("espeak-ng"), reason="no espeak-ng (bash setup-utils/install-test-tools.sh)"),
]
QUICK = ["num_classes=12", "embedding_size=16", "batch_size=8", "verify_every=100"]


def test_both_stages_are_trained_and_compared(succeed, tmp_path):
    speakers = [TORCH / "python", "-m", "examples.speakers"]
    succeed(*speakers, "--root", tmp_path / "speakers", "--speakers", 12, "--unseen", 8, "--utterances", 6)
    first, second = tmp_path / "first", tmp_path / "second"

    def train(stage, output, *words):
        config = ["--config", f"examples/speakers/{stage}.json", *QUICK, f"data_root={tmp_path}", f"output={output}"]
        succeed(*IN_TURN, "2", "train", *config, *words)

    train("settings", first, "task_options=frames=100", "num_epoch=40", "lr=0.4")
    (checkpoint, *_) = sorted((first / "checkpoints").glob("step-*"), reverse=True)
    train("large_margin", second, "task_options=frames=200", f"pretrained={checkpoint}")
    table = succeed(*speakers[:-1], "examples.speakers.evaluate", first, second, "--root", tmp_path / "speakers").stdout
    rates = {tuple(cells[:2]): float(cells[2]) for cells in rows(table)}
    assert len(rates) == 9, table
    assert all(0 < rates[str(folder), "cosine"] < 45 for folder in (first, second)), table  # 50 is chance


def rows(table):
    lines = [[cell.strip() for cell in line.strip("| ").split("|")] for line in table.splitlines()]
    return [cells for cells in lines if len(cells) == 4][2:]
