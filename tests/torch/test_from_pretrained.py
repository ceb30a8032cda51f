"""model.safetensors and config.json of a training, from_pretrained, and the folder of a model hub."""

import hashlib
import json
import shutil

import numpy as np
import pytest
import torch

import default
import partial_fc
from partial_fc.data.synthetic import DemoSize, write_demo
from partial_fc.export.model import FaceModel
from partial_fc.training.trainer import train
from partial_fc_tools.__main__ import main
from partial_fc_torch import from_pretrained, get_model
from partial_fc_torch.build import TorchFramework
from partial_fc_torch.pretrained import weights_content
from partial_fc_torch.published_files import read_pretrained


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The output folder of a training on faces, with an average of the weights."""
    root = tmp_path_factory.mktemp("run")
    write_demo(root / "faces", DemoSize(seed=1, identities=10, images_per_identity=4, held_out=20, pairs=40))
    train(settings_of(root, rec=str(root / "faces"), val_targets=["demo_val"], ema_decay=0.9), TorchFramework())
    return root / "out"


def settings_of(root, **changes):
    sizes = {"batch_size": 8, "num_classes": 10, "max_update": 2, "embedding_size": 16, "lr_steps": []}
    changes = {"output": str(root / "out"), "network": "small", **sizes, **changes}
    return default.generate_config(changes=changes, trainer="torch")


@pytest.fixture
def copy(run, tmp_path):
    """A copy of the folder without the files of other formats, as from a model hub."""
    for name in ("model.safetensors", "config.json", "README.md"):
        shutil.copy(run / name, tmp_path)
    return tmp_path


def embeddings(model, faces):
    with torch.no_grad():
        return model(torch.from_numpy((faces.transpose(0, 3, 1, 2) - np.float32(127.5)) / 127.5)).numpy()


FACES = np.random.default_rng(0).integers(0, 256, (4, 112, 112, 3), np.uint8)


def test_a_trained_backbone_loads_again(run, copy):
    model = partial_fc.from_pretrained(copy)
    assert not model.training
    for name, value in torch.load(run / "backbone.pth", weights_only=True).items():
        assert torch.equal(value, model.state_dict()[name])
    with_onnx = FaceModel.open(str(run)).session.run(
        None, {"data": (FACES.transpose(0, 3, 1, 2) / 127.5 - 1).astype("f")}
    )
    np.testing.assert_allclose(embeddings(model, FACES), with_onnx[0], atol=1e-4)
    averaged = torch.load(run / "backbone_ema.pth", weights_only=True)["fc.weight"]
    assert torch.equal(from_pretrained(run / "model_ema.safetensors").fc.weight, averaged)


def test_the_description_of_a_model(copy):
    config = json.loads((copy / "config.json").read_text())
    assert config["partial_fc_version"] == partial_fc.__version__
    assert [config[key] for key in ("architecture", "num_features", "eps", "license")] == ["small", 16, 1e-5, None]
    assert config["preprocessing"]["size"] == [112, 112] and config["training"]["num_update"] == "2"
    assert config["training"]["verification_set"] == "demo_val"


def test_a_hub_takes_the_folder_as_it_is(run, tmp_path, capsys):
    hub = pytest.importorskip("huggingface_hub")
    out = tmp_path / "hub"
    (tmp_path / "notes.md").write_text("## My own figures\n\n| rank-1 |\n| --- |\n| 0.9 |\n")
    command = ["export", str(run), "--hf", "--license", "apache-2.0", "--data", "drawn faces", "--out", str(out)]
    assert main([*command, "--notes", str(tmp_path / "notes.md")]) == 0, capsys.readouterr()
    names = {"README.md", "backbone.onnx", "config.json", "model.safetensors"}
    assert {path.name for path in out.iterdir()} == names
    for name in names:  # what upload_folder makes of each file; it checks README.md on the hub
        hub.CommitOperationAdd(path_in_repo=name, path_or_fileobj=out / name)
    for folder, license in ((run, None), (out, "apache-2.0")):
        card = hub.ModelCard.load(folder / "README.md")
        assert (card.data.library_name, card.data.license) == ("partial_fc", license) and "## " in card.text
    assert "drawn faces" in card.text and "Not tested" in card.text and "\n## My own figures\n\n| rank-1 |" in card.text
    assert "| `demo_val` | accuracy | " in (text := (run / "README.md").read_text()) and " ± " in text
    assert str(run.parent) not in card.text  # the folders of the machine that trained it
    digest = hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()
    assert f" {digest} |" in card.text
    assert json.loads((out / "config.json").read_text())["license"] == "apache-2.0"
    assert hub.parse_local_safetensors_file_metadata(out / "model.safetensors").metadata["format"] == "pt"
    assert torch.equal(from_pretrained(out).fc.weight, from_pretrained(run).fc.weight)


def test_no_file_behind_a_link_gets_into_a_hub(copy, run, tmp_path, capsys):
    (copy / "private").write_text('{"password": 1}')
    (copy / "config.json").unlink()
    (copy / "config.json").symlink_to(copy / "private")
    for name in ("curves.json", "settings.json", "summary.json", "backbone.onnx"):
        shutil.copy(run / name, copy)
    assert main(["export", str(copy), "--hf", "--out", str(tmp_path / "hub")]) == 2
    assert "config.json is a link" in capsys.readouterr().err


def test_other_files_and_modules(copy, tmp_path):
    state = get_model("small", num_features=16).state_dict()
    state["fc.weight"] = state["fc.weight"].half()
    other = tmp_path / "other.safetensors"
    other.write_bytes(weights_content(state))
    assert torch.equal(from_pretrained(other, model=get_model("small", num_features=16)).fc.weight, state["fc.weight"])
    (tmp_path / "config.json").unlink()
    assert torch.equal(from_pretrained(other).fc.weight, state["fc.weight"].float())  # recognized by its layers
    tied = torch.ones(2, 3)
    (tmp_path / "tied.safetensors").write_bytes(weights_content({"a": tied, "b": tied}))
    weights = read_pretrained(str(tmp_path / "tied.safetensors"), False).weights
    assert weights.keys() == {"arg:a", "arg:b"}
    (tmp_path / "views.safetensors").write_bytes(weights_content({"a": tied[:1], "b": tied}))
    with pytest.raises(ValueError, match="views.safetensors: it lacks weight"):
        from_pretrained(tmp_path / "views.safetensors", model=torch.nn.BatchNorm1d(3))


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"architecture": None}, "model="),
        ({"architecture": "os:system"}, "trust_code"),
        ({"num_features": 10**9}, "num_features"),
        ({"sizes": {"image_size": 1024}}, "fc.weight has the shape"),
        ({"sizes": {"image_size": "112"}}, "config.json: image_size is '112'"),
        ({"architecture": "timm:resnet18", "sizes": {"image_size": 16 * 10**4}}, "image_size is 160000"),
        ({"eps": "x"}, "eps is 'x'"),
        ({"eps": -1}, "eps is -1"),
    ],
)
def test_a_description_that_does_not_fit(copy, changes, message):
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(ValueError, match=message):
        from_pretrained(copy)


def test_damaged_and_missing_weights(copy):
    path = copy / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ValueError, match=f"{path} is damaged"):
        from_pretrained(copy)
    for kind, size in (("F4", 1), ("F8_E4M3", 2), ("C64", 16)):
        header = json.dumps({"fc": {"dtype": kind, "shape": [2], "data_offsets": [0, size]}}).encode()
        path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(size))
        with pytest.raises(ValueError, match=f"{path} holds fc of torch"):
            from_pretrained(copy)
    with pytest.raises(ValueError, match="user/name is no folder"):
        from_pretrained("user/name")


def test_a_users_own_function_is_called_only_if_it_is_trusted(tmp_path, monkeypatch):
    (tmp_path / "own_weights.py").write_text(
        "from torch import nn\n\ndef build(num_features, width):\n    return nn.Linear(width, num_features)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    state = torch.nn.Linear(5, 3).state_dict()
    (tmp_path / "model.safetensors").write_bytes(weights_content(state))
    config = {"architecture": "own_weights:build", "num_features": 3, "sizes": {"width": 5}, "eps": None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="own_weights:build.*trust_code"):
        from_pretrained(tmp_path)
    assert torch.equal(from_pretrained(tmp_path, trust_code=True).weight, state["weight"])
