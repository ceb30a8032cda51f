"""The files of a VERIFIED training with the settings of conftest.py: seven updates at batch size 8 on 160 images."""

import json
import re

LOG_LINE = re.compile(
    r"^Training: \d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}-Speed \d+\.\d\d samples/sec   Loss \d+\.\d{4}   "
    r"Epoch: (\d+)   Global Step: (\d+)   Required: \d+ hours   Waiting for data: (\d+\.\d) %   "
    r"Learning rate: [\d.e-]+   Time left: \d+:\d\d:\d\d$",
    re.MULTILINE,
)
FILES = {
    *("backbone.onnx", "training.log", "summary.json", "settings.json", "report.html", "curves.png", "curves.json"),
    *("tensorboard", "checkpoints", ".lock", ".run", "run_id"),
}
# By trainer: its backbone, and the centers of a rank.
OWN_FILES = {
    "mxnet": (("model-symbol.json", "model-0000.params"), ("{}_centers.param", "{}_centers_mom.param")),
    "torch": (
        ("backbone.pth", "model.safetensors", "config.json", "README.md"),
        ("rank_{}_softmax_weight.pt", "rank_{}_softmax_weight_mom.pt"),
    ),
}


def check_outcome(folder, ranks, trainer="mxnet", loss="arcface"):
    """Checks the files and their content; returns summary.json."""
    lines, epoch = LOG_LINE.findall((folder / "training.log").read_text()), 160 // (8 * ranks)
    assert [(int(e), int(s)) for e, s, _ in lines] == [((s - 1) // epoch, s) for s in (2, 4, 6, 7)]
    assert all(0 <= float(waiting) <= 100 for _, _, waiting in lines)
    backbone, centers = OWN_FILES[trainer]
    of_ranks = {name.format(rank) for rank in range(ranks) for name in centers}
    written = {path.name for path in folder.iterdir() if not path.name.startswith("earlier-")}
    assert written == {*FILES, *backbone, *of_ranks}
    assert any(path.stat().st_size > 100 for path in (folder / "tensorboard").iterdir())
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["dataset"], summary["network"], summary["loss"]) == ("demo", "small", loss)
    assert (summary["ranks"], summary["updates"], summary["skipped_images"]) == (ranks, 7, 0)
    assert 0 <= summary["waiting_for_data"] < 1
    assert summary["seconds"] > 0 and summary["samples_per_second"] > 0 and summary["final_loss"] > 0
    assert list(summary["verification"]) == ["demo_val"] and 0 <= summary["verification"]["demo_val"] <= 1
    assert set(summary["baselines"]) == {"raw_pixels", "untrained"}
    versions = {"mxnet": {"mxnet", "horovod"}, "torch": {"torch"}}
    assert set(summary["versions"]) >= {"numpy", "python"} | versions[trainer]
    assert trainer == "mxnet" or "mxnet" not in summary["versions"]
    return summary
