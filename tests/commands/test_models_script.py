"""examples/models.sh with few updates: the folder for a hub loads again, and its card has what a user must know."""

import json

import pytest
from conftest import TORCH, needs_torch
from test_glyphs_experiment import PACKAGES, SIZE, drawn_once

from paths import ROOT

FEW = ["batch_size=8", "embedding_size=16", "lr_epochs=[]", "num_epoch=0", "max_update=6", "baselines=False"]
pytestmark = [pytest.mark.slow, needs_torch]


@pytest.fixture
def card_of(succeed, tmp_path):
    """Runs the script in a folder, loads what it wrote there, and returns the card."""

    def written(name, *settings, **environment):
        script = ["env", "-C", tmp_path, "bash", ROOT / "examples/models.sh", name, *FEW, *settings]
        printed = succeed(*script, **environment).stdout
        hub = tmp_path / "hub" / name
        digest = printed.split()[-2]
        card = (hub / "README.md").read_text()
        assert f"| `model.safetensors` | {(hub / 'model.safetensors').stat().st_size:,} | {digest} |" in card
        assert "not given" not in card and f"examples/models.sh {name} batch_size=8" in card
        license = json.loads((hub / "config.json").read_text())["license"]
        assert f"| licence of the model | {license} |" in card
        load = card.split("```python\n")[1].split("```")[0].replace("FOLDER", str(hub))
        succeed(TORCH / "python", "-c", load, PYTHONPATH=str(ROOT))
        return card

    return written


def test_the_demo(card_of, faces, tmp_path):
    card = card_of("demo", f"rec={faces}", "num_classes=20", "lr_steps=[]")
    assert "license: apache-2.0\n" in card and "no image of a person" in card
    accuracy = next(line for line in card.splitlines() if line.startswith("| demo\\_val | 40 |"))
    assert accuracy.count(" - ") == 2  # the intervals of accuracy and TAR


def test_words(card_of):
    sizes = {"unseen": 60, "pairs": 100, "probes": 3}
    options = ",".join(f"{name}={value}" for name, value in sizes.items())
    evaluation = " ".join(f"--{name} {value}" for name, value in {"classes": 200, **sizes}.items())
    card = card_of("words", "num_classes=200", f"task_options={options}", SET="--quick", EVALUATION=evaluation)
    assert "license: cc-by-sa-3.0\n" in card and "CC BY-SA 3.0, by OpenCorpora" in card
    trained = next(line for line in card.splitlines() if line.startswith("| models/words | "))
    assert trained.count(" ± ") == 4
    assert '("FOLDER", trust_code=True)' in card and "This imports `examples.words.network`" in card


def test_glyphs(card_of, made_once):
    of_set = ["--fonts", drawn_once(made_once) / "fonts", *SIZE, "--packages", *PACKAGES]
    card = card_of("glyphs", "num_classes=60", SET=" ".join(map(str, of_set)))
    assert "license: other\n" in card and "OFL-1.1 (23), IPA-1.0 (9), Arphic Public License (7)" in card
    for kind in ("trained", "new"):
        (row,) = (line for line in card.splitlines() if line.startswith(f"| {kind} | "))
        assert row.count(" ± ") == 3
