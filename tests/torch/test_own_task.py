"""A task of a user: dicts of letters and lengths are trained on, verified, resumed, and exported as faces are."""

import json

import torch

import default
from partial_fc.checkpoint import CheckpointFolder
from partial_fc.training.trainer import train
from partial_fc_torch.build import TorchFramework

SIZES = {"num_classes": 30, "embedding_size": 16, "batch_size": 12, "max_update": 24, "lr_steps": []}
EVERY = {"verify_every": 12, "checkpoint_every": 12, "log_every": 6}
OWN = {"task": "own_task:Words", "network": "own_task:network", "trackers": "jsonl", "baselines": True}


def settings_of(folder, **changes):
    changes = {**SIZES, **EVERY, **OWN, "output": str(folder), **changes}
    return default.generate_config(changes=changes, trainer="torch")


def weights(folder):
    return torch.load(folder / "backbone.pth", weights_only=True)


def test_it_is_trained_verified_exported_and_resumed_to_the_same_bytes(tmp_path):
    train(settings_of(tmp_path / "whole", ema_decay=0.9), TorchFramework())
    summary = json.loads((tmp_path / "whole" / "summary.json").read_text())
    assert list(summary["verification"]) == ["pairs", "spellings", "pairs_ema", "spellings_ema"]
    assert set(summary["baselines"]) == {"untrained"}  # those of the first set
    assert "spellings" in (tmp_path / "whole" / "report.html").read_text()
    tracked = (tmp_path / "whole" / "metrics.jsonl").read_text()
    assert "verification/spellings/rank1" in tracked

    first, second = tmp_path / "whole" / "checkpoints", tmp_path / "resumed"
    path = dict(CheckpointFolder(str(first), 2).complete())[12]
    train(settings_of(second, ema_decay=0.9, resume=path), TorchFramework())
    for name in ("backbone.pth", "backbone.onnx", "backbone_ema.onnx", "rank_0_softmax_weight.pt"):
        assert (second / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
