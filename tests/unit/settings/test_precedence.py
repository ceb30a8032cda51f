"""Presets, config.py, a saved configuration and the user's changes: which of them wins."""

import json
import os
import sys
from functools import partial

import pytest

import default
from partial_fc.layer.margins import MARGINS
from partial_fc.settings import presets
from partial_fc.training.recipes.table import RECIPES
from partial_fc.utils.config import SettingsError, parse_options, to_json, write_settings
from partial_fc.utils.imports import OBJECT_SETTINGS
from paths import ROOT


def factors_of(config):
    """Returns the factors of a user's lr_func."""
    return parse_options("schedule_options", config.schedule_options)["factors"]


OWN = {"rec": "/sets/own", "num_classes": 70, "num_epoch": 3, "lr_epochs": [2], "warmup_steps": 0}


@pytest.mark.parametrize(
    "changes, loss, margin",
    [
        ({}, "arcface", "combined"),
        ({"loss": "magface"}, "magface", "magface"),
        ({"margin": "own.margins:Mine"}, "own", "own.margins:Mine"),
        ({"loss": "own", "margin": "combined", "margins": (0.9, 0.4, 0.1)}, "own", "combined"),
    ],
)
def test_a_loss_has_its_margin(changes, loss, margin, tmp_path):
    config = default.generate_config(changes=changes, trainer="torch")
    assert (config.loss, config.margin) == (loss, margin)
    saved = tmp_path / "settings.json"
    options = {"combined": "", "magface": "l_m=0.3"}.get(margin, "m=0.3,kind=a")
    write_settings(str(saved), {**config, "margin_options": options})
    config = default.generate_config(config_file=str(saved), trainer="torch", trust_code=True)
    assert (config.loss, config.margin) == (loss, margin)
    config = default.generate_config("adaface", config_file=str(saved), trainer="torch")
    assert (config.loss, config.margin, config.margin_options) == ("adaface", "adaface", "")


def test_another_margin_of_the_same_loss_has_none_of_the_saved_options(tmp_path):
    options = {"margins": [1.0, 0.4, 0.1], "interclass_filtering_threshold": 0.3}
    write_settings(str(tmp_path / "a.json"), {"loss": "own", "margin": "combined", **options})
    changes = {"loss": "own", "margin": "own.margins:Mine"}
    config = default.generate_config(changes=changes, config_file=str(tmp_path / "a.json"), trainer="torch")
    assert (config.margin, config.margin_options) == (changes["margin"], "")


@pytest.mark.parametrize(
    "preset, part, value, options",
    [
        ({"dataset_name": "emore"}, "schedule", "epochs", "epochs=[8,14]"),
        ({"loss_name": "cosface"}, "margin", "combined", "m1=1.0,m2=0.0,m3=0.4"),
    ],
)
def test_the_part_of_a_preset_keeps_its_options_when_it_is_named_again(preset, part, value, options):
    config = default.generate_config(**preset, changes={part: value}, trainer="torch")
    assert (config[part], config[f"{part}_options"]) == (value, options)


def test_errors_name_their_source(monkeypatch):
    monkeypatch.setitem(default.user_config, "momentum", 2.0)
    with pytest.raises(SettingsError, match="^config.py: momentum is 2.0"):
        default.generate_config()
    monkeypatch.setitem(default.dataset.emore, "max_update", -1)
    monkeypatch.delitem(default.user_config, "momentum")
    with pytest.raises(SettingsError, match="^preset emore: max_update is -1"):
        default.generate_config(dataset_name="emore")


def test_presets_config_and_command_line_win_in_this_order(monkeypatch):
    config = default.generate_config("cosface", "glint360k_8GPU", "r100")
    assert config is default.config
    assert config.margin_options == "m1=1.0,m2=0.0,m3=0.4"
    assert (config.num_classes, config.max_update, config.embedding_size) == (360232, 600000, 512)
    assert (config.schedule, config.schedule_options) == ("steps", "steps=[200000,400000,500000,550000]")
    assert len(config.val_targets) == 7
    monkeypatch.setitem(default.user_config, "batch_size", 32)
    monkeypatch.setitem(default.user_config, "num_classes", 5)
    config = default.generate_config(None, "emore", None, {"batch_size": 16})
    assert (config.batch_size, config.num_classes, config.loss) == (16, 5, "arcface")


@pytest.mark.parametrize("name", [name for name in default.dataset if name != "own"])
def test_every_preset_makes_a_whole_configuration_with_the_same_classes_in_both_trainers(name):
    configs = [dict(default.generate_config(None, name, trainer=trainer)) for trainer in presets.TRAINERS]
    for config in configs:
        assert config["num_classes"] == configs[0]["num_classes"] > 0
        assert config["schedule"] == ("epochs" if config["num_epoch"] else "steps")
        assert config["schedule_options"].startswith(f"{config['schedule']}=[")
        assert config["debug"] == name.endswith("w") and (config["num_epoch"] or config["max_update"]) > 0
    recipe = RECIPES.get({"emore": "ms1mv2", "webface": ""}.get(name, name) + "_r50")
    assert recipe is None or recipe["num_classes"] == configs[0]["num_classes"]


def test_a_preset_of_one_trainer_keeps_its_schedule():
    names = ("data_name", "schedule_options", "max_update", "num_epoch", "network_options")
    mxnet = dict(default.generate_config(None, "webface", trainer="mxnet"))
    assert [mxnet[name] for name in names] == ["webface", "steps=[20000,28000]", 32000, 0, ""]


def test_a_config_py_of_the_tutorial(monkeypatch):
    lines = """
config.dataset = "emore"
config.sample_rate = 1
config.weight_decay = 1e-4
config.fp16 = True
config.output = "ms1mv3_arcface_r50"
config.rec = "/train_tmp/faces_emore"
config.num_classes = 85742
config.num_epoch = 4
config.warmup_epoch = -1
config.val_targets = ["lfw", ]
def lr_step_func(epoch):
    return ((epoch + 1) / (4 + 1)) ** 2 if epoch < config.warmup_epoch else 0.1 ** len(
        [m for m in [2, 4] if m - 1 <= epoch])
config.lr_func = lr_step_func
"""
    user = type(default.config)()
    exec(lines, {"config": user})
    monkeypatch.setattr(default, "user_config", user)
    config = default.generate_config(trainer="torch")
    assert factors_of(config) == pytest.approx([1, 0.1, 0.1, 0.01])
    assert (config.schedule, config.num_epoch, config.wd, config.sample_ratio) == ("factors", 4, 1e-4, 1.0)
    assert (config.rec, config.output) == ("/train_tmp/faces_emore/train.rec", os.path.abspath("ms1mv3_arcface_r50"))
    assert not {"weight_decay", "sample_rate"} & set(config)


def test_the_examples_in_config_py_are_allowed(monkeypatch):
    user = type(default.config)()
    with open(ROOT / "config.py") as file:
        lines = [line[2:] for line in file if line.startswith("# config.")]
    exec("".join(lines), {"config": user})
    monkeypatch.setattr(default, "user_config", user)
    config = default.generate_config(trainer="torch")
    assert len(user) == len(lines) and (config.dataset, config.batch_size) == ("emore", 128)
    assert factors_of(config) == pytest.approx([1] * 8 + [0.1] * 8 + [0.01] * 4)


EPOCHS_8_14 = {"schedule": "epochs", "schedule_options": "epochs=[8,14]"}


@pytest.mark.parametrize(
    "dataset, changes, expected",
    [
        ("emore", {"max_update": 9}, {"num_epoch": 0, "max_update": 9, **EPOCHS_8_14}),
        ("demo", {"num_epoch": 2}, {"num_epoch": 2, "schedule_options": "steps=[1600,1900]", "warmup_steps": 400}),
        ("demo", {"warmup_epoch": 1}, {"warmup_epoch": 1, "warmup_steps": 0, "schedule": "steps"}),
        ("emore", {"warmup_steps": 50}, {"warmup_steps": 50, "num_epoch": 16, **EPOCHS_8_14}),
        ("emore", {"lr_steps": [5]}, {"schedule": "steps", "schedule_options": "steps=[5]"}),
        (
            "demo",
            {"lr_func": [1, 0.5]},
            {"schedule": "factors", "schedule_options": "factors=[1.0,0.5]", "warmup_steps": 0},
        ),
        ("demo", {"lr_epochs": [2]}, {"schedule": "epochs", "schedule_options": "epochs=[2]", "warmup_steps": 400}),
        ("demo", {"schedule": "cosine"}, {"schedule": "cosine", "schedule_options": "", "warmup_steps": 400}),
        ("demo", {"lr_steps": []}, {"schedule": "constant", "schedule_options": ""}),
    ],
)
def test_a_schedule_replaces_a_presets_schedule_in_another_unit(dataset, changes, expected):
    config = default.generate_config(dataset_name=dataset, changes=changes, trainer="torch")
    assert {name: config[name] for name in expected} == expected


def test_a_warm_up_does_not_replace_a_function_of_the_user(monkeypatch):
    user = type(default.config)(lr_func=lambda epoch: 0.5**epoch, num_epoch=2)
    monkeypatch.setattr(default, "user_config", user)
    for warm_up in ("warmup_epoch", "warmup_steps"):
        with pytest.raises(SettingsError, match=f"^schedule is 'factors' .*{warm_up} is set: remove one"):
            default.generate_config(dataset_name="demo", changes={warm_up: 1})
    config = default.generate_config(dataset_name="demo", changes={"warmup_epoch": 1, "lr_epochs": [2]})
    assert (config.warmup_epoch, config.schedule, config.schedule_options) == (1, "epochs", "epochs=[2]")


def test_rec_is_a_file_or_its_folder(tmp_path):
    (tmp_path / "faces.v2").mkdir()
    for given, path in (("/sets/own.rec", "/sets/own.rec"), ("/sets/own", "/sets/own/train.rec")):
        assert default.generate_config(dataset_name="demo", changes={"rec": given}).rec == path
    folder = str(tmp_path / "faces.v2")
    assert default.generate_config(dataset_name="demo", changes={"rec": folder}).rec == f"{folder}/train.rec"


def test_an_own_set_takes_nothing_from_the_demo():
    config = default.generate_config(changes=OWN)
    assert (config.dataset, config.embedding_size, config.val_targets, config.warmup_steps) == ("own", 512, [], 0)


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({}, (0, 20, 32000, "cosine", "")),
        ({"max_update": 9}, (0, 0, 9, "cosine", "")),
        ({"num_epoch": 5, "num_classes": 7}, (7, 5, 32000, "cosine", "")),
        ({"num_epoch": 5, "lr_epochs": [2]}, (0, 5, 32000, "epochs", "epochs=[2]")),
        ({"schedule": "polynomial"}, (0, 20, 32000, "polynomial", "")),
        # As before there was a default, these have constant rates.
        ({"num_epoch": 5, "lr_steps": []}, (0, 5, 32000, "constant", "")),
        ({"num_epoch": 5, "warmup_epoch": 1, "warmup": "linear"}, (0, 5, 32000, "constant", "warmup=linear")),
    ],
)
def test_an_own_set_alone_trains_on_its_classes_for_20_epochs(changes, expected):
    config = default.generate_config(changes={"rec": "/sets/own", **changes})
    length = config.num_epoch, config.max_update
    assert (config.num_classes, *length, config.schedule, config.schedule_options) == expected


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"rec": "/a", "lr_epochs": [8]}, "/a/train.rec has no length that its schedule 'epochs' fits"),
        ({"debug": True, "num_classes": 0}, "num_classes is not set"),
        ({"task": "signals:Signals"}, "num_classes is not set"),
    ],
)
def test_what_does_not_follow_from_a_set_is_demanded(changes, message):
    with pytest.raises(SettingsError, match=message):
        default.generate_config(changes=changes)


def test_a_validation_set_that_the_user_names_must_exist(tmp_path):
    (tmp_path / "val.bin").touch()
    changes = {"rec": str(tmp_path), "val_targets": ["val", "vla"]}
    assert default.generate_config(changes=changes).num_epoch == 20  # a host that has no set, and only starts the ranks
    (tmp_path / "train.rec").touch()
    with pytest.raises(SettingsError, match=f"val_targets has vla, but there is no {tmp_path}/vla.bin"):
        default.generate_config(changes=changes)
    assert default.generate_config(changes={**changes, "val_targets": ["val"]}).val_targets == ["val"]
    saved = tmp_path / "settings.json"
    saved.write_text(json.dumps(changes))
    for arguments in ({"config_file": str(saved)}, {"recipe": changes}):  # as before: left out, with a warning
        assert default.generate_config(**arguments).val_targets == ["val", "vla"]


def test_an_own_set_may_take_a_preset_and_is_saved(tmp_path):
    assert default.generate_config(dataset_name="demo", changes={"rec": "/sets/own"}).max_update == 2000
    named = default.generate_config(changes={**OWN, "rec": "", "data_name": "own"})
    assert (named.dataset, named.data_root) == ("own", "/train_tmp")
    saved = tmp_path / "settings.json"
    saved.write_text(to_json(default.generate_config(changes=OWN)))
    assert default.generate_config(config_file=saved).dataset == "own"


@pytest.fixture
def saved(tmp_path):
    """Writes a settings.json of the configuration of these arguments; returns both."""

    def save(**arguments):
        config = dict(default.generate_config(**arguments))
        path = str(tmp_path / "settings.json")
        write_settings(path, config)
        return config, path

    return save


PRESET_NAMES = [
    (trainer, kind, name)
    for trainer in presets.TRAINERS
    for kind, named in presets.PRESETS.items()
    for name in named
    if name in presets.NETWORKS[trainer]
    or (kind != "network" and (trainer == "torch" or name not in [*MARGINS, *(["own"] * (kind == "loss"))]))
]


@pytest.mark.parametrize("trainer, kind, name", PRESET_NAMES)
def test_a_saved_configuration_gives_the_same_settings(kind, name, trainer, saved, monkeypatch):
    changes = {
        **({"dataset": {**OWN, "lr_epochs": []}, "loss": {"margin": "a:b"}}[kind] if name == "own" else {}),
        kind: name,
        "lr": 0.123456789012345678,
        "resume": "auto",
        "pretrained": "~/a.params",
        "lr_steps": [7],
    }
    config, path = saved(changes=changes, trainer=trainer)
    monkeypatch.setitem(default.user_config, "batch_size", 3)  # another config.py does not matter
    again = default.generate_config(config_file=path, trainer=trainer, trust_code=True)
    assert again == config
    assert list(again) == list(default.SETTINGS.settings)
    assert [type(value) for value in again.values()] == [type(value) for value in config.values()]


def test_a_configuration_of_an_earlier_version_gives_the_same_settings(saved, monkeypatch):
    config, path = saved(trainer="torch")
    new = ("labels", "labels_per_item", "objective", "objective_options")
    write_settings(path, {name: value for name, value in config.items() if name not in new})
    monkeypatch.setitem(default.user_config, "network_options", "dropout=0.4")  # the saved default wins
    assert default.generate_config(config_file=path, trainer="torch") == config


def test_a_saved_training_in_epochs_is_run_again_with_its_rates_and_not_its_updates(saved):
    config, path = saved(changes={"num_epoch": 4000, "lr_func": lambda epoch: 0.99**epoch}, trainer="torch")
    write_settings(path, {**config, "max_update": 777})  # follows from the number of ranks at that time
    again = default.generate_config(config_file=path, trainer="torch")
    assert factors_of(again) == [0.99**epoch for epoch in range(4000)]
    assert again.num_epoch == 4000 and again.max_update != 777
    assert default.generate_config(config_file=path, changes={"max_update": 5}, trainer="torch").num_epoch == 0
    again = default.generate_config(dataset_name="webface", config_file=path, trainer="torch")
    assert (again.num_epoch, again.schedule_options) == (34, "epochs=[20,28,32]")


@pytest.mark.parametrize("trainer", presets.TRAINERS)
@pytest.mark.parametrize("names", [{"dataset_name": "webface"}, {"dataset_name": "100w"}, {"loss_name": "cosface"}])
@pytest.mark.parametrize("rec", [{}, {"rec": "/sets/own", "dataset": "demo"}])
def test_another_preset_replaces_a_saved_one_as_a_whole(names, rec, trainer, saved):
    _, path = saved(changes={"batch_size": 16, **rec}, trainer=trainer)
    kept = rec if "loss_name" in names else {}
    expected = dict(default.generate_config(**names, changes={"batch_size": 16, **kept}, trainer=trainer))
    assert default.generate_config(**names, config_file=path, trainer=trainer) == expected


def test_a_saved_configuration_may_hold_some_settings_only(tmp_path):
    (tmp_path / "some.json").write_text(json.dumps({"dataset": "emore", "batch_size": 3, "weight_decay": 0.1}))
    config = default.generate_config(changes={"sample_rate": 0.5}, config_file=str(tmp_path / "some.json"))
    assert (config.num_classes, config.batch_size, config.momentum) == (85742, 3, 0.9)
    assert (config.wd, config.sample_ratio) == (0.1, 0.5)


@pytest.mark.parametrize(
    "content, message",
    [
        ('{"bach_size": 1}', ": unknown setting 'bach_size'"),
        ('{"dataset": null}', ": dataset is None"),
        ('{"lr": NaN}', ": lr is nan"),
        ('{"lr": 1', ": Expecting"),
        ("[" * 200_000, ": .* nested too deeply"),
        (" " * (1 << 20) + "{}", ": .* more than 1,048,576 bytes"),
        ('{"max_update": 1' + 30 * "0" + "}", ": max_update is 10+, .* below 2.63"),
        ('{"rec": "a\\u0000b"}', ": rec is .* a path"),
        ('{"lr": ' + "[" * 900 + "]" * 900 + "}", ": lr is .* type float"),
        ("[1]", ": .* object of names"),
        ('{"lr": 1, "lr": 2}', ": .* 'lr' twice"),
        ("\udcff", ": .* decode"),
    ],
)
def test_a_saved_configuration_that_is_refused(content, message, tmp_path):
    (tmp_path / "settings.json").write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(SettingsError, match=f"settings.json{message}"):
        default.generate_config(config_file=str(tmp_path / "settings.json"))
    with pytest.raises(SettingsError, match="cannot read the settings in .*none.json: No such file"):
        default.generate_config(config_file=str(tmp_path / "none.json"))


FORMS = {
    "a.json": '{"dataset": "emore", "wd": 1e-4, "fp16": true, "lr_epochs": [8, 14], "val_targets": "lfw,cfp_fp"}',
    "a.toml": 'dataset = "emore"\nwd = 1e-4\nfp16 = true\nlr_epochs = [8, 14]\nval_targets = "lfw,cfp_fp"',
    "a.yaml": "dataset: emore\nwd: 1e-4\nfp16: true\nlr_epochs: [8, 14]\nval_targets: lfw,cfp_fp",
}


@pytest.mark.parametrize("name", [*FORMS, "a.yml"])
def test_settings_are_read_from_json_toml_and_yaml(name, tmp_path):
    if name.endswith("toml"):
        pytest.importorskip("tomllib")
    path = tmp_path / name
    path.write_text(FORMS[name.replace("yml", "yaml")])
    config = default.generate_config(config_file=path, trainer="torch")
    assert (config.dataset, config.wd, config.fp16, config.val_targets) == ("emore", 1e-4, True, ["lfw", "cfp_fp"])
    assert (config.schedule, config.schedule_options) == ("epochs", "epochs=[8,14]")


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("a.yml", "lr: 1\nlr: 2", "'lr' twice"),
        ("a.yaml", "a: &a [1, 1]\nb: *a", "aliases"),
        ("a.yaml", "lr: [", "while parsing"),
        ("a.yaml", "!!python/object/apply:os.system [exit]", "constructor"),
        ("a.yaml", "- lr", "object of names"),
        ("a.yml", "lr: 2026-11-29", "lr is datetime"),
        ("a.toml", "lr = [", "Invalid|TOML"),
        ("a.toml", "[lr]\na = 1", "lr is {'a': 1}"),
    ],
)
def test_a_file_of_settings_that_is_refused_is_named(name, text, message, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(SettingsError, match=f"{name}: .*({message})") as refused:
        default.generate_config(config_file=str(tmp_path / name))
    assert "\n" not in str(refused.value)


def test_yaml_without_pyyaml_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    (tmp_path / "a.yaml").write_text("lr: 0.1")
    with pytest.raises(SettingsError, match="pip install pyyaml"):
        default.generate_config(config_file=str(tmp_path / "a.yaml"))


def test_the_data_sets_of_the_tutorial():
    """Figures of arcface_torch at insightface's commit fb5b42fe."""
    names = ("data_name", "num_classes", "num_epoch", "schedule_options", "val_targets", "network_options")
    three = ["lfw", "cfp_fp", "agedb_30"]
    expected = {
        "emore": ("faces_emore", 85742, 16, "epochs=[8,14]", ["lfw"], ""),
        "ms1m-retinaface-t1": ("ms1m-retinaface-t1", 93431, 25, "epochs=[11,17,22]", three, ""),
        "ms1mv3": ("ms1m-retinaface-t1", 93431, 25, "epochs=[11,17,22]", three, ""),
        "ms1m-retinaface-t2": ("ms1m-retinaface-t2", 91180, 25, "epochs=[11,17,22]", three, ""),
        "glint360k": ("glint360k", 360232, 20, "epochs=[8,12,15,18]", three, ""),
        "webface": ("faces_webface_112x112", 10572, 34, "epochs=[20,28,32]", three, "dropout=0.4"),
    }
    common = {"data_root": "/train_tmp", "log_every": 50, "verify_every": 2000, "max_grad_norm": 5.0, "momentum": 0.9}
    common.update(lr=0.1, batch_size=64, wd=5e-4, sample_ratio=1.0, fp16=False, embedding_size=512, warmup_epoch=-1)
    for name, values in expected.items():
        config = default.generate_config(dataset_name=name, trainer="torch")
        assert {key: config[key] for key in (*names, *common)} == {**dict(zip(names, values)), **common}


def test_code_that_only_a_settings_file_names_is_refused(saved, monkeypatch):
    assert {row.name for row in default.SETTINGS.settings.values() if "package.module" in row.help} | {"rec"} == set(
        OBJECT_SETTINGS
    )
    for setting in OBJECT_SETTINGS:
        value = ["jsonl", "antigravity:fly"] if setting in ("trackers", "val_targets") else "antigravity:fly"
        changes = {**OWN, "loss": "own" if setting == "margin" else "arcface", "margin": "combined", setting: value}
        if setting == "schedule":
            del changes["lr_epochs"]
        _, path = saved(changes=changes, trainer="torch")
        read = partial(default.generate_config, config_file=path, trainer="torch")
        with pytest.raises(SettingsError, match=f"^{path} sets {setting} to 'antigravity:fly', .*--trust-code"):
            read()
        monkeypatch.setitem(default.user_config, setting, value)
        for config in (read(), read(trust_code=True)):
            assert config[setting] == value
        monkeypatch.delitem(default.user_config, setting)
        assert read(changes={setting: value})[setting] == value
    for changes in ({"optimizer": "torch.optim:RMSprop"}, {"rec": "hf:faces"}, {"network": "timm:vit_tiny"}):
        _, path = saved(changes={**OWN, **changes}, trainer="torch")
        assert default.generate_config(config_file=path, trainer="torch").items() >= changes.items()
    default.generate_config(config_file=f"{ROOT}/examples/words/settings.json", trainer="torch")
    assert "antigravity" not in sys.modules
