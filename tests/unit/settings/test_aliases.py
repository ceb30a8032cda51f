"""Names of settings in earlier versions, in the original trainers and in arcface_torch."""

import copy
import json
import pickle

import pytest
from easydict import EasyDict

import default
from partial_fc.checkpoint import Manifest
from partial_fc.settings.aliases import ALIASES
from partial_fc.training.log_lines import changes_since
from partial_fc.utils.config import SettingsError

OWN = {"rec": "/sets/own", "num_classes": 70, "num_epoch": 3}
MIN_IMAGES, FILTER = ("images_filter", "min_images_per_class"), "interclass_filtering_threshold"
FACTORS = {"schedule": "factors"}
BY_EPOCH = "m2=[0.0,0.3],m3=[[1,0.0],[4,0.2]]"
WEBFACE = {"dataset": "webface"}  # its preset has options of the network
# (trainer, other settings, settings by an earlier name, by today's)
CASES = [
    ("mxnet", {}, {"dummy_data": True}, {"debug": True}),
    ("mxnet", {}, {"frequent": 3, "num_workers": 4}, {"log_every": 3, "decode_threads": 4}),
    ("mxnet", {}, {"sample_rate": 0.3, "verbose": 7}, {"sample_ratio": 0.3, "verify_every": 7}),
    ("mxnet", {}, {"weight_decay": 0.1}, {"wd": 0.1}),
    ("torch", WEBFACE, {"dropout": 0.2}, {"network_options": "dropout=0.2"}),
    ("torch", WEBFACE, {"activation_checkpointing": True}, {"network_options": "activation_checkpointing=True"}),
    ("torch", {}, {"compile_backbone": True}, {"network_options": "compile=True"}),
    ("mxnet", {}, {"bn_mom": 0.97}, {"network_options": "bn_mom=0.97"}),
    ("mxnet", {}, {"net_se": True, "net_act": "relu"}, {"network_options": "se=True,act=relu"}),
    ("mxnet", {}, {"net_output": "GAP"}, {"network_options": "output=GAP"}),
    ("mxnet", {}, {"cutoff": 8}, {"task_options": "cutout=8"}),
    ("mxnet", {}, {"cutout": 8, "jpeg_compression": 30}, {"task_options": "cutout=8,jpeg_compression=30"}),
    ("mxnet", {}, {"color_jittering": 0.2}, {"task_options": "color_jittering=0.2"}),
    ("mxnet", {}, {"resize": True}, {"task_options": "resize=True"}),
    *(("mxnet", {}, {name: 3}, {"task_options": "min_images_per_class=3"}) for name in MIN_IMAGES),
    ("mxnet", {}, {"margins": (1.0, 0.3, 0.2)}, {"margin_options": "m1=1.0,m2=0.3,m3=0.2"}),
    ("mxnet", {}, {"margin_list": [1, 0.3, 0.2]}, {"margin_options": "m1=1.0,m2=0.3,m3=0.2"}),
    ("torch", {}, {"margins": (1.0, [0.0, 0.3], [[1, 0.0], [4, 0.2]])}, {"margin_options": f"m1=1.0,{BY_EPOCH}"}),
    ("mxnet", {"loss": "cosface"}, {"margins": (1.0, 0.5, 0.0)}, {"margin_options": ""}),
    ("torch", {"loss": "cosface"}, {FILTER: 0.4}, {"margin_options": f"{FILTER}=0.4"}),
    ("mxnet", {}, {"backbone_lr": 0.2}, {"optimizer_options": "lr=0.2"}),
    ("torch", {}, {"decay_on": "weights"}, {"optimizer_options": "decay_on=weights"}),
    ("mxnet", {}, {"memory_bank_lr": 0.2}, {"layer_options": "lr=0.2"}),
    ("torch", {}, {"layer_dtype": "tf32", "layer_kernel": "torch"}, {"layer_options": "dtype=tf32,kernel=torch"}),
    ("mxnet", {}, {"logits_cache_mb": 5, "tile_classes": 9}, {"layer_options": "logits_cache_mb=5,tile_classes=9"}),
    ("mxnet", {}, {"kept_mb": 5}, {"layer_options": "logits_cache_mb=5"}),
    ("torch", {}, {"lr_steps": [5, 6]}, {"schedule_options": "steps=[5,6]"}),
    ("torch", OWN, {"lr_epochs": [1, 2]}, {"schedule": "epochs", "schedule_options": "epochs=[1,2]"}),
    ("torch", OWN, {"lr_epochs": []}, {"schedule": "constant", "schedule_options": ""}),
    ("torch", OWN, {"lr_func": lambda e: 0.5**e}, {**FACTORS, "schedule_options": "factors=[1.0,0.5,0.25]"}),
    ("mxnet", OWN, {"lr_func": [1, 1, 0.5]}, {**FACTORS, "schedule_options": "factors=[1.0,1.0,0.5]"}),
    ("mxnet", {"warmup_epoch": 2}, {"warmup": "linear"}, {"schedule_options": "warmup=linear"}),
    ("mxnet", {}, {"checkpoint_minutes": 5, "checkpoints_kept": 3}, {"checkpoint_options": "minutes=5.0,kept=3"}),
]


def test_every_earlier_name_is_tried():
    assert {name for _, _, earlier, _ in CASES for name in earlier} == set(ALIASES)


@pytest.mark.parametrize("trainer, others, earlier, today", CASES)
def test_an_earlier_name_still_sets_and_reads_a_setting(trainer, others, earlier, today):
    by_earlier_name = dict(default.generate_config(changes={**others, **earlier}, trainer=trainer))
    config = default.generate_config(changes={**others, **today}, trainer=trainer)
    assert by_earlier_name == dict(config)
    for name, value in earlier.items():
        expected = [value(epoch) for epoch in range(3)] if callable(value) else value
        expected = type(config[name])(expected) if isinstance(expected, (list, tuple)) else expected
        assert config[name] == getattr(config, name) == expected


def test_an_unknown_name_is_no_attribute():
    assert not hasattr(default.config, "lr_stepz") and "lr_steps" not in default.config
    with pytest.raises(KeyError, match="lr_stepz"):
        default.config["lr_stepz"]
    assert copy.deepcopy(default.config) == pickle.loads(pickle.dumps(default.config)) == default.config


def test_options_of_several_sources_are_merged(monkeypatch, tmp_path):
    monkeypatch.setitem(default.user_config, "cutoff", 8)
    monkeypatch.setitem(default.user_config, "network_options", "activation_checkpointing=True")
    changes = {"dataset": "webface", "color_jittering": 0.2}
    config = default.generate_config(changes=changes, trainer="torch")
    assert config.task_options == "cutout=8,color_jittering=0.2"
    assert config.network_options == "dropout=0.4,activation_checkpointing=True"
    off = {"cutout": 0, "dropout": 0.0}
    config = EasyDict(default.generate_config(changes={**changes, **off}, trainer="torch"))
    assert (config.task_options, config.network_options) == ("color_jittering=0.2", "activation_checkpointing=True")
    assert default.generate_config(changes={**changes, "network_options": ""}, trainer="torch").network_options == ""
    (tmp_path / "a.json").write_text(json.dumps(config))  # a whole configuration, so config.py does not matter
    again = default.generate_config(config_file=str(tmp_path / "a.json"), trainer="torch")
    assert again.task_options == "color_jittering=0.2" and again == config
    (tmp_path / "b.json").write_text(json.dumps({"dataset": "webface", "jpeg_compression": 30}))
    again = default.generate_config(config_file=str(tmp_path / "b.json"), trainer="torch")
    assert again.task_options == "cutout=8,jpeg_compression=30" and again.network_options.startswith("dropout=0.4")


@pytest.mark.parametrize(
    "part, options, kept",
    [
        ({"optimizer": "adamw"}, "betas=(0.9,0.95),decay_on=weights,lr=0.1", "lr=0.1,decay_on=weights"),
        ({"schedule": "own:schedule"}, "power=2,warmup=linear", "warmup=linear"),
        ({"task": "own:Task"}, "cutout=4", ""),
        ({"margin": "own:margin"}, "m2=0.3", ""),
    ],
)
def test_another_part_has_none_of_the_earlier_ones_options(part, options, kept, monkeypatch):
    ((name, value),) = part.items()
    monkeypatch.setitem(default.user_config, f"{name}_options", options)
    own = {**OWN, "schedule": "polynomial", **part}
    free = default.generate_config(changes=own, trainer="torch")[f"{name}_options"]
    assert set(free.split(",")) == set(options.split(","))  # no part was named with them
    former = {"optimizer": "torch.optim:Adam", "schedule": "polynomial", "task": "faces", "margin": "combined"}[name]
    monkeypatch.setitem(default.user_config, name, former)
    assert default.generate_config(changes=own, trainer="torch")[f"{name}_options"] == kept


def test_settings_in_a_checkpoint_of_an_earlier_version_are_compared_by_todays_names(caplog):
    saved = {"dropout": 0.4, "margins": [1.0, 0.5, 0.0], "lr_steps": [5], "schedule": "", "lr": 0.1, "unknown": 7}
    origin = {"code": "a", **{f"setting {name}": value for name, value in saved.items()}}
    now = {"network_options": "", "margin_options": "", "schedule": "steps", "schedule_options": "steps=[6]", "lr": 0.1}
    facts = {"code": "a", **{f"setting {name}": value for name, value in now.items()}}
    manifest = Manifest(500, 7, 3, 2, [], {}, {}, [], origin)
    assert changes_since(manifest, facts, default.todays_names) == {
        "setting network_options": ("dropout=0.4", ""),
        "setting schedule_options": ("steps=[5]", "steps=[6]"),
    }


@pytest.mark.parametrize("name, value", [("lr", -1), ("margins", "x"), ("layer_options", "lr")])
def test_invalid_settings_in_a_checkpoint_are_compared_as_they_are(name, value):
    manifest = Manifest(500, 7, 3, 2, [], {}, {}, [], {f"setting {name}": value})
    facts = {f"setting {name}": 0.1}
    assert changes_since(manifest, facts, default.todays_names) == {f"setting {name}": (value, 0.1)}


def test_two_names_of_one_option_contradict_each_other():
    with pytest.raises(SettingsError, match="backbone_lr and optimizer_options set optimizer_options.lr to 0.2 and 0"):
        default.generate_config(changes={"backbone_lr": 0.2, "optimizer_options": "lr=0.3"})
