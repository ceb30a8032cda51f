"""The declarations of default.py, and the order in which values win."""

import json
import math

import pytest

import default
from partial_fc.utils.config import Schema, Setting, SettingsError, parse_assignments, read_settings, write_settings

SETTINGS = default.SETTINGS.settings
ANOTHER_TYPE = {bool: 1, int: 0.5, float: "much", str: 5, list: 3, tuple: 3}


def kind_of(setting):
    return setting.item or type(setting.default)


def neighbors(setting, bound):
    """The nearest allowed kind of number below and above."""
    if kind_of(setting) is float:
        return math.nextafter(bound, -math.inf), math.nextafter(bound, math.inf)
    step = setting.multiple_of or 1
    return bound - step, bound + step


def as_value(setting, number):
    return type(setting.default)([number] * (setting.length or 1)) if setting.item else number


def cases():
    """(setting, value, what the error says or None) at, below and above every bound that is declared."""
    for setting in SETTINGS.values():
        for name, refuses_bound, outer in (
            ("at_least", False, 0),
            ("above", True, 0),
            ("at_most", False, 1),
            ("below", True, 1),
        ):
            bound = getattr(setting, name)
            if bound is not None:
                around = neighbors(setting, bound)
                error = f"{name.replace('_', ' ')} {bound}"
                yield setting, around[1 - outer], None
                yield setting, bound, error if refuses_bound else None
                yield setting, around[outer], error
        if setting.multiple_of:
            yield setting, setting.at_least + 1, f"a multiple of {setting.multiple_of}"
        if kind_of(setting) is float:
            yield from ((setting, value, "a finite number") for value in (math.nan, math.inf, -math.inf, 10**400))
        if setting.choices:
            yield from ((setting, choice, None) for choice in setting.choices)
            yield setting, "x", "did you mean"


CASES = [pytest.param(*case, id=f"{case[0].name}={str(case[1])[:30]}") for case in cases()]


@pytest.mark.parametrize("setting, number, error", CASES)
def test_values_at_below_and_above_every_bound(setting, number, error):
    value = as_value(setting, number)
    if error is None:
        assert default.generate_config(changes={setting.name: value})[setting.name] == value
        return
    with pytest.raises(SettingsError) as caught:
        default.generate_config(changes={setting.name: value})
    assert setting.name in str(caught.value) and error in str(caught.value)


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=lambda setting: setting.name)
def test_every_setting_has_a_bound_if_it_is_a_number_and_is_refused_with_another_type(setting):
    bounded = any(getattr(setting, bound) is not None for bound in ("at_least", "above", "at_most", "below"))
    assert bounded == (kind_of(setting) in (int, float)) or setting.name == "margins"
    for value in (None, ANOTHER_TYPE[type(setting.default)], as_value(setting, ANOTHER_TYPE[kind_of(setting)])):
        with pytest.raises(SettingsError, match=f"^{setting.name} (is|contains) .*must be of type"):
            default.generate_config(changes={setting.name: value})


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=lambda setting: setting.name)
def test_help_lists_every_setting_with_default_type_and_bounds(setting):
    text = " ".join(default.SETTINGS.describe().split())
    start = f" {setting.name}={setting.default} {setting.help} ("
    assert start + type(setting.default).__name__ in text
    assert setting.bounds in text[text.index(start) :].partition(")")[0]
    assert setting.help and "\n" not in setting.help


@pytest.mark.parametrize(
    "changes, message",
    [
        # As users have given them; independent of the declarations, which the tests above follow.
        ({"momentum": 1.5}, "momentum is 1.5, but must be at least 0 and below 1"),
        ({"wd": -1}, "wd is -1.0, but must be at least 0"),
        ({"loss_s": 0}, "loss_s is 0.0, but must be above 0"),
        ({"cutoff": 1000}, "cutoff is 1000, but must be at most 112, the image_size"),
        ({"logits_cache_mb": -1}, "logits_cache_mb is -1, but must be at least 0"),
        ({"kept_mb": 256}, "unknown setting 'kept_mb': its name is now 'logits_cache_mb'"),
        ({"max_update": -1}, "max_update is -1, but must be at least 0"),
        ({"tile_classes": -7}, "tile_classes is -7, but must be at least 0"),
        ({"decode_threads": 1000000}, "decode_threads is 1000000, but must be at least 0 and at most 1024"),
        ({"lr": -0.1}, "lr is -0.1, but must be at least 0"),
        ({"lr": math.nan}, "lr is nan, but must be a finite number, at least 0"),
        ({"backbone_lr": -0.1}, "backbone_lr is -0.1"),
        ({"memory_bank_lr": math.inf}, "memory_bank_lr is inf"),
        ({"warmup_steps": -1}, "warmup_steps is -1"),
        ({"max_grad_norm": -5}, "max_grad_norm is -5"),
        ({"batch_size": 0}, "batch_size is 0, but must be at least 1"),
        ({"num_classes": 0}, "num_classes is 0, but must be at least 1"),
        ({"image_size": 100}, "image_size is 100, but must be .*a multiple of 16"),
        ({"host_timeout": 2}, "host_timeout is 2, but must be at least 3"),
        ({"sample_ratio": 0.0}, "sample_ratio is 0.0, but must be above 0 and at most 1"),
        ({"sample_ratio": 1.5}, "sample_ratio is 1.5"),
        ({"net_act": "rely"}, "unknown net_act 'rely': did you mean 'relu'"),
        ({"margins": (1, 2)}, r"margins is \(1, 2\), but must be 3 values"),
        ({"margins": (1, "x", 0)}, "margins contains 'x', but must be of type float"),
        ({"lr_steps": ["a"]}, "lr_steps contains 'a', but must be of type int"),
        ({"lr_steps": [20, 10]}, r"lr_steps is \[20, 10\], but must be increasing"),
        ({"lr_steps": [20, 20]}, "lr_steps is .*increasing"),
        ({"class_map": "same"}, "class_map maps the classes of a checkpoint: set resume or pretrained"),
        ({"class_map": "same", "resume": "auto"}, "class_map maps"),
        ({"rec": "/sets/train.idx"}, "rec is /sets/train.idx, but must be the path of a .rec file"),
        ({"dataset": "100w", "debug": False}, "dataset 100w has no images"),
        ({"dataset": [1]}, r"dataset is \[1\], but must be of type str"),
        ({"bach_size": 1}, "unknown setting 'bach_size': did you mean 'batch_size'"),
    ],
)
def test_settings_that_are_refused(changes, message):
    with pytest.raises(SettingsError, match=f"^{message}"):
        default.generate_config(changes=changes)


def test_values_keep_the_type_of_the_default():
    schema = Schema(
        Setting("ratio", 1.0, "a float"),
        Setting("steps", [1], "a list", item=int),
        Setting("margins", (1.0, 0.5), "a tuple", item=float),
        former_names={},
    )
    merged = schema.merge(("", {"ratio": 1, "steps": (2, 3), "margins": [1, 0]}))
    assert merged == {"ratio": 1.0, "steps": [2, 3], "margins": (1.0, 0.0)}
    assert [type(value) for value in (merged["ratio"], *merged["margins"])] == [float] * 3
    merged["steps"].append(4)
    assert schema.merge()["steps"] == [1]


def test_errors_name_their_source(monkeypatch):
    monkeypatch.setitem(default.user_config, "momentum", 2.0)
    with pytest.raises(SettingsError, match="^config.py: momentum is 2.0"):
        default.generate_config()
    monkeypatch.setitem(default.dataset.emore, "max_update", -1)
    monkeypatch.delitem(default.user_config, "momentum")
    with pytest.raises(SettingsError, match="^preset emore: max_update is -1"):
        default.generate_config(dataset_name="emore")


def test_assignments_of_the_command_line():
    arguments = ["sample_ratio=0.1", "lr_steps=[10,20]", "debug=true", "rec=/data/a=b/train.rec", "data_name={[]:1}"]
    assert parse_assignments(arguments) == {
        "sample_ratio": 0.1,
        "lr_steps": [10, 20],
        "debug": True,
        "rec": "/data/a=b/train.rec",
        "data_name": "{[]:1}",
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


def test_unknown_presets():
    for kind, names in (("loss", ["arc"]), ("dataset", [None, "emor"]), ("network", [None, None, "r101"])):
        with pytest.raises(SettingsError, match=f"unknown {kind} .*did you mean"):
            default.generate_config(*names)


@pytest.fixture
def saved(tmp_path):
    """Writes a settings.json of the configuration of these arguments; returns both."""

    def save(**arguments):
        config = dict(default.generate_config(**arguments))
        path = str(tmp_path / "settings.json")
        write_settings(path, config)
        return config, path

    return save


@pytest.mark.parametrize("kind, name", [(kind, name) for kind, presets in default.PRESETS.items() for name in presets])
def test_a_saved_configuration_gives_the_same_settings(kind, name, saved, monkeypatch):
    changes = {kind: name, "lr": 0.123456789012345678, "resume": "auto", "pretrained": "~/a.params", "lr_steps": [7]}
    config, path = saved(changes=changes)
    monkeypatch.setitem(default.user_config, "batch_size", 3)  # another config.py does not matter
    again = default.generate_config(config_file=path)
    assert again == config
    assert list(again) == list(SETTINGS)
    assert [type(value) for value in again.values()] == [type(value) for value in config.values()]


def test_the_command_line_wins_over_a_saved_configuration(saved):
    _, path = saved(changes={"lr": 0.3, "batch_size": 16})
    again = default.generate_config(changes={"lr": 0.2}, config_file=path)
    assert (again.lr, again.batch_size, again.dataset) == (0.2, 16, "demo")


@pytest.mark.parametrize("names", [{"dataset_name": "emore"}, {"dataset_name": "100w"}, {"loss_name": "cosface"}])
def test_another_preset_replaces_that_of_a_saved_configuration_as_a_whole(names, saved):
    _, path = saved(changes={"batch_size": 16})
    expected = dict(default.generate_config(**names, changes={"batch_size": 16}))
    assert default.generate_config(**names, config_file=path) == expected


def test_a_saved_configuration_may_hold_some_settings_only(tmp_path):
    (tmp_path / "some.json").write_text(json.dumps({"dataset": "emore", "batch_size": 3}))
    config = default.generate_config(config_file=str(tmp_path / "some.json"))
    assert (config.num_classes, config.batch_size, config.momentum) == (85742, 3, 0.9)


@pytest.mark.parametrize(
    "content, message",
    [
        ('{"bach_size": 1}', "settings.json: unknown setting 'bach_size': did you mean 'batch_size'"),
        ('{"kept_mb": 1}', "settings.json: unknown setting 'kept_mb': its name is now 'logits_cache_mb'"),
        ('{"dataset": null}', "settings.json: dataset is None, but must be of type str"),
        ('{"lr": NaN}', "settings.json: lr is nan, but must be a finite number"),
        ('{"lr": 1', "settings.json is not a settings.json: "),
        ("[1]", "settings.json is not a settings.json: expected names and values"),
        ("\udcff", "settings.json is not a settings.json: "),
    ],
)
def test_a_saved_configuration_that_is_refused(content, message, tmp_path):
    (tmp_path / "settings.json").write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(SettingsError, match=message):
        default.generate_config(config_file=str(tmp_path / "settings.json"))


def test_a_saved_configuration_that_is_missing(tmp_path):
    with pytest.raises(SettingsError, match="cannot read the settings in .*none.json: No such file"):
        read_settings(str(tmp_path / "none.json"))
