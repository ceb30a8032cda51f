import pytest

import default
from partial_fc.utils.config import SettingsError, choose, merge, parse_assignments


def test_unknown_names_come_with_the_nearest_known_one():
    with pytest.raises(SettingsError, match="unknown loss 'arcfase': did you mean 'arcface'"):
        choose("loss", "arcfase", {"arcface": 1, "cosface": 2})
    with pytest.raises(SettingsError, match="unknown setting 'sampl_ratio': did you mean 'sample_ratio'"):
        merge({"sample_ratio": 1.0, "seed": 0}, {"sampl_ratio": 0.1})


def test_values_keep_their_type():
    settings = {"ratio": 1.0, "seed": 0, "debug": False, "steps": [1], "margins": (1.0, 0.5, 0.0), "rec": ""}
    merge(settings, {"ratio": 1, "steps": (2, 3), "margins": [1, 0, 0.4], "rec": "a/train.rec"})
    assert settings["ratio"] == 1.0 and isinstance(settings["ratio"], float)
    assert settings["steps"] == [2, 3] and settings["margins"] == (1, 0, 0.4)
    for wrong in (
        {"seed": 0.5},
        {"seed": True},
        {"debug": 1},
        {"ratio": "much"},
        {"steps": 3},
        {"rec": 5},
        {"seed": None},
    ):
        with pytest.raises(SettingsError, match=f"{list(wrong)[0]} is .*must be of type"):
            merge(settings, wrong)


def test_assignments_of_the_command_line():
    words = [
        "sample_ratio=0.1",
        "lr_steps=[10,20]",
        "debug=true",
        "rec=/data/a=b/train.rec",
    ]
    assert parse_assignments(words) == {
        "sample_ratio": 0.1,
        "lr_steps": [10, 20],
        "debug": True,
        "rec": "/data/a=b/train.rec",
    }
    with pytest.raises(SettingsError, match="cannot read 'debug'"):
        parse_assignments(["debug"])


def test_presets_config_and_command_line_win_in_this_order(monkeypatch):
    config = default.generate_config("cosface", "glint360k_8GPU", "r100")
    assert config is default.config
    assert config.margins == (1.0, 0.0, 0.4)
    assert (config.num_classes, config.max_update, config.embedding_size) == (360232, 600000, 512)
    assert config.lr_steps == [200000, 400000, 500000, 550000]
    assert len(config.val_targets) == 7
    monkeypatch.setitem(default.user_config, "batch_size", 32)
    monkeypatch.setitem(default.user_config, "num_classes", 5)
    config = default.generate_config(None, "emore", None, {"batch_size": 16})
    assert (config.batch_size, config.num_classes, config.loss) == (16, 5, "arcface")


@pytest.mark.parametrize("name", default.dataset)
def test_every_preset_makes_a_whole_configuration(name):
    config = default.generate_config(None, name)
    assert config.num_classes > 0 and config.max_update > 0
    assert config.lr_steps == sorted(config.lr_steps)
    assert config.debug == name.endswith("w")


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"image_size": 100}, "image_size is 100"),
        ({"host_timeout": 2}, "host_timeout is 2, but hosts answer once a second"),
        ({"sample_ratio": 0.0}, "sample_ratio is 0.0"),
        ({"sample_ratio": 1.5}, "sample_ratio is 1.5"),
        ({"max_update": -1}, "max_update is -1"),
        ({"lr": -0.1}, "lr is -0.1"),
        ({"backbone_lr": -0.1}, "backbone_lr is -0.1"),
        ({"memory_bank_lr": -0.1}, "memory_bank_lr is -0.1"),
        ({"warmup_steps": -1}, "warmup_steps is -1"),
        ({"max_grad_norm": -5}, "max_grad_norm is -5"),
        ({"margins": (1, 2)}, "margins"),
        ({"margins": (1, "x", 0)}, "margins"),
        ({"lr_steps": ["a"]}, "lr_steps"),
        ({"lr_steps": [20, 10]}, "lr_steps"),
        ({"dataset": "100w", "debug": False}, "100w has no images"),
        ({"num_classes": 0}, "num_classes is 0"),
        ({"bach_size": 1}, "did you mean 'batch_size'"),
    ],
)
def test_settings_that_cannot_be(changes, message):
    with pytest.raises(SettingsError, match=message):
        default.generate_config(changes=changes)


def test_unknown_presets():
    for kind, names in (("loss", ["arc"]), ("dataset", [None, "emor"]), ("network", [None, None, "r101"])):
        with pytest.raises(SettingsError, match=f"unknown {kind}"):
            default.generate_config(*names)
