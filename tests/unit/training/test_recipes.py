"""Configurations of arcface_torch: what their keys become, and finished trainings beside published results."""

import json
import math

import pytest

import default
from partial_fc.training.recipes.config_file import read_recipe
from partial_fc.training.recipes.table import RECIPES
from partial_fc.training.recipes.translate import translate
from partial_fc.training.schedule import Epochs, learning_rates, resolve_schedule
from partial_fc.utils.config import SettingsError
from partial_fc_tools.__main__ import main
from partial_fc_tools.recipes.check import verdict
from paths import ROOT

# All keys that configs/base.py of arcface_torch has, in a file of its form.
THEIRS = """
from easydict import EasyDict as edict
config = edict()
config.margin_list = (1.0, 0.0, 0.4)
config.network = "r100"
config.resume = True
config.save_all_states = False
config.output = None
config.embedding_size = 256
config.sample_rate = 0.2
config.interclass_filtering_threshold = 0
config.fp16 = True
config.batch_size = 256
config.optimizer = "adamw"
config.lr = 0.001
config.momentum = 0.8
config.weight_decay = 0.1
config.verbose = 1000
config.frequent = 5
config.dali = False
config.dali_aug = False
config.gradient_acc = 12
config.seed = 7
config.num_workers = 4
config.wandb_key = "SECRET"
config.suffix_run_name = "first, again"
config.using_wandb = True
config.wandb_entity = "team"
config.wandb_project = "faces"
config.wandb_log_all = True
config.save_artifacts = True
config.wandb_resume = False
config.rec = "/data/faces"
config.num_classes = 1000
config.num_image = 50000
config.num_epoch = 40
config.warmup_epoch = config.num_epoch // 10
config.val_targets = ["lfw"]
"""


def recipe(tmp_path, text):
    (tmp_path / "mine.py").write_text(text)
    return read_recipe(str(tmp_path / "mine"))


def settings_of(found, ranks=1, **changes):
    return default.generate_config(changes=changes, trainer="torch", recipe=translate(found, ranks).settings)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_can_be_trained(name):
    found = read_recipe(f"configs/{name}")
    settings = settings_of(found, ranks=found.config["gpus"])
    assert settings.network == found.config["network"] and settings.num_classes == found.config["num_classes"]
    rec = found.config["rec"]
    assert settings.dataset == (rec if rec in default.dataset else "own")
    assert settings.rand_mirror == (not rec.startswith("glyphs"))
    published = found.config.get("published", {})
    assert list(published) in ([], ["MFR-ALL", "IJB-C 1e-4", "IJB-C 1e-5"], settings.val_targets)


def test_every_key_becomes_a_setting(tmp_path):
    translation = translate(recipe(tmp_path, THEIRS), 8)
    settings = default.generate_config(trainer="torch", recipe=translation.settings)
    expected = {
        **{"margin_options": "m1=1.0,m2=0.0,m3=0.4", "network": "r100", "resume": "auto", "embedding_size": 256},
        **{"sample_ratio": 0.2, "output": str(ROOT / "work_dirs" / "mine"), "trackers": ["tensorboard", "wandb"]},
        **{"fp16": True, "batch_size": 256, "optimizer": "adamw", "center_optimizer": "adamw", "momentum": 0.8},
        **{"wd": 0.1, "verify_every": 1000, "log_every": 5, "gradient_acc": 12, "seed": 7, "decode_threads": 4},
        **{"rec": "/data/faces/train.rec", "num_classes": 1000, "num_epoch": 40, "val_targets": ["lfw"]},
        "tracker_options": "project='faces',entity='team',run_name='first, again',artifacts=True",
    }
    assert {name: settings[name] for name in expected} == expected
    assert translation.environment == {"WANDB_API_KEY": "SECRET"}
    assert "SECRET" not in json.dumps(dict(settings)) + "".join(translation.lines())
    assert {row[0] for row in translation.rows} >= set(recipe(tmp_path, THEIRS).config)
    plain = translate(recipe(tmp_path, THEIRS.replace("save_artifacts = True", "save_artifacts = False")), 8)
    assert "artifacts" not in plain.settings["tracker_options"]
    few = "config = dict(rec='/data', num_classes=10, num_epoch=2, warmup_epoch=0, val_targets=[], num_image=9999)"
    rows = {key: result for key, _, result in translate(recipe(tmp_path, few), 1).rows}
    defaults = {key: result for key, result in rows.items() if key not in recipe(tmp_path, few).config}
    assert rows["num_classes"] == "num_classes=10" and defaults and all("=" in result for result in defaults.values())


def test_rates_are_absolute_and_fall_to_zero_with_every_update():
    """MS1MV3 on 8 x 128: N // G = 5058 updates an epoch, 20 epochs; WebFace42M with a warm-up of two of 20."""
    for name, ranks, of_epoch, warm_up, rate in (
        ("ms1mv3_r50", 8, 5058, 0, 0.1),
        ("wf42m_pfc02_r100_32gpus", 32, 10369, 2, 0.4),
    ):
        found = read_recipe(f"configs/{name}")
        settings, factor = resolve_schedule(settings_of(found), Epochs(found.config["num_image"], ranks * 128))
        assert settings.max_update == 20 * of_epoch and learning_rates(settings, ranks) == (rate, rate)
        w, total = warm_up * of_epoch, 20 * of_epoch
        for t in (1, w, w + 1, total // 2, total):
            if t:
                assert math.isclose(factor(t), t / w if t <= w else 1 - (t - w) / (total - w), abs_tol=1e-9), (name, t)


def test_dummy_images_are_counted_in_updates(tmp_path):
    text = THEIRS.replace('"/data/faces"', '"synthetic"')
    settings = settings_of(recipe(tmp_path, text), ranks=2)
    assert settings.debug and (settings.max_update, settings.warmup_steps) == (40 * 8, 4 * 8)
    none = text.replace("config.num_epoch // 10", "-1")
    assert none != text and settings_of(recipe(tmp_path, none), ranks=2).warmup_steps == 0


def test_unsupported_keys_are_refused_together(tmp_path):
    wrong = """
config = dict(network="r50", dali_aug=True, optimizer="lamb", netwrk="r18", decay_epoch=[10], rec="/data",
              num_classes=10, num_epoch=2, val_targets=[])
"""
    with pytest.raises(SettingsError) as refused:
        translate(recipe(tmp_path, wrong), 1)
    for part in ("warmup_epoch is missing", "dali_aug", "'lamb'", "did you mean 'network'", "decay_epoch"):
        assert part in str(refused.value)


@pytest.mark.parametrize("rec", ["/data", "synthetic"])
@pytest.mark.parametrize("key", ["lr", "margin_list", "batch_size", "gradient_acc", "num_epoch", "num_classes", "rec"])
@pytest.mark.parametrize("value", [[1, 2], None, {}, float("nan"), 10**400], ids=str)
def test_a_value_of_another_type_is_refused_in_one_line(key, value, rec, tmp_path):
    found = recipe(tmp_path, THEIRS)
    config = {**found.config, "rec": rec, key: value}
    with pytest.raises(SettingsError, match=f"{key.removesuffix('_list')}.* is ") as refused:
        settings_of(found._replace(config=config))
    assert "\n" not in str(refused.value)


def test_a_file_of_the_name_of_a_recipe_wins(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert read_recipe("ms1mv3_r50").config["num_classes"] == read_recipe("configs/ms1mv3_r50").config["num_classes"]
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "ms1mv3_r50.py").write_text("config = dict(num_classes=7)")
    assert read_recipe("configs/ms1mv3_r50").config == {"num_classes": 7}


def test_a_file_that_is_not_there_or_fails_is_named(tmp_path):
    with pytest.raises(ValueError, match="such as configs/ms1mv3_r50"):
        read_recipe("configs/ms1mv3_r5")
    with pytest.raises(ValueError, match="there is no /other/ms1mv3_r50.py"):
        read_recipe("/other/ms1mv3_r50")
    exits = "import sys; sys.exit(0)"
    for text, error in ((exits, "SystemExit"), ("1 / 0", "ZeroDivisionError"), ("x = 1", "has no dictionary 'config'")):
        with pytest.raises(ValueError, match=f"mine.py.*{error}"):
            recipe(tmp_path, text)


@pytest.mark.parametrize(
    "ijbc, mfr_all, code, words",
    [
        ({"1e-4": 0.9630, "1e-5": 0.9450}, "79.2", 0, ["confirmed"] * 3),
        ({"1e-4": 0.9630, "1e-5": 0.9400}, "79.2", 1, ["confirmed", "confirmed", "lower"]),
        ({"1e-4": 0.9630, "1e-5": 0.9450}, "", 1, ["not measured", "confirmed", "confirmed"]),
    ],
)
def test_check_compares_a_training_with_the_published_results(ijbc, mfr_all, code, words, tmp_path, capsys):
    run = tmp_path / "ms1mv3_r50"
    run.mkdir()
    settings = settings_of(read_recipe("configs/ms1mv3_r50"))
    del settings["new_centers"]  # as of an older version
    (run / "settings.json").write_text(json.dumps({**settings, "wd": 1e-4, "pretrained": "/other"}))
    (run / "summary.json").write_text(json.dumps({"ranks": 4, "verification": {"lfw": 0.998}}))
    (run / "IJBC.json").write_text(json.dumps({"tar_at_nearest_far": ijbc}))
    assert main(["recipes", "check", str(run), *(["--mfr-all", mfr_all] if mfr_all else [])]) == code
    out = capsys.readouterr().out
    assert "wd=0.0001, the recipe 0.0005" in out and "global batch=512, the recipe 1024" in out
    assert "pretrained='/other', the recipe ''" in out and out.count("the training has") == 3
    assert [line.split("  ")[-1].strip() for line in out.splitlines()[4:]] == words
    assert main(["recipes", "check", str(run), "--ijbc", str(run / "none.json")]) == 2


@pytest.mark.parametrize(
    "file, content",
    [
        *(("summary.json", text) for text in ("{}", "[]")),
        ("summary.json", '{"ranks": 0, "verification": {}}'),
        ("summary.json", '{"ranks": 1, "verification": {"MFR-ALL": "x"}}'),
        ("settings.json", '{"batch_size": [0]}'),  # times the ranks it would fill the memory
        ("settings.json", '{"network": "r50"}'),
        *(("IJBC.json", text) for text in ("{}", '{"tar_at_nearest_far": {"1e-4": []}}')),
    ],
)
def test_check_refuses_files_that_no_training_writes(file, content, tmp_path, capsys):
    run = tmp_path / "ms1mv3_r50"
    run.mkdir()
    (run / "summary.json").write_text(json.dumps({"ranks": 2**40, "verification": {"lfw": 0.99}}))
    (run / "settings.json").write_text('{"batch_size": 2}')
    (run / file).write_text(content)
    assert main(["recipes", "check", str(run)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
    assert str(run / file) in error or "batch_size" in error


def test_check_runs_no_recipe_of_the_current_folder_that_was_not_named(tmp_path, monkeypatch, capsys):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "mine.py").write_text("open('marker', 'w')")
    monkeypatch.chdir(tmp_path)
    assert main(["recipes", "check", "mine"]) == 2
    assert "there is no" in capsys.readouterr().err and not (tmp_path / "marker").exists()


@pytest.mark.parametrize("name", ["demo", "glyphs_small", "glyphs_vit", "glyphs_mbf_adamw"])
def test_accuracies_are_compared_with_the_tolerance_of_the_recipe(name, tmp_path, capsys):
    found = read_recipe(f"configs/{name}")
    (tmp_path / "settings.json").write_text(json.dumps(settings_of(found, ranks=2)))

    def check(excess):
        """Checks a training whose accuracies are above the lowest ones allowed by an excess in percent."""
        lowest = {target: value - tolerance for target, (value, tolerance) in found.config["published"].items()}
        accuracies = {target: (value + excess) / 100 for target, value in lowest.items()}
        (tmp_path / "summary.json").write_text(json.dumps({"ranks": 2, "verification": accuracies}))
        code = main(["recipes", "check", str(tmp_path), "--recipe", f"configs/{name}"])
        return code, capsys.readouterr().out

    code, out = check(0.01)
    assert code == 0 and out.count("confirmed") == len(found.config["published"])
    assert "the training has" not in out
    assert verdict("lfw", (80.0, 0.5), 79.5)[-1] == "confirmed"  # by just as much as is tolerated
    code, out = check(-0.01)
    assert code == 1 and out.count("lower") == len(found.config["published"])


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({"max_update": 100}, {"max_update": 100, "num_epoch": 0}),
        ({"warmup_steps": 100}, {"warmup_steps": 100, "warmup_epoch": -1}),
        ({"lr_epochs": [8, 14]}, {"schedule": "epochs", "schedule_options": "epochs=[8,14]"}),
        ({"weight_decay": 1e-4, "sample_rate": 0.2, "frequent": 5}, {"wd": 1e-4, "sample_ratio": 0.2, "log_every": 5}),
        *(({name: "adaface"}, {"margin": "adaface", "margin_options": ""}) for name in ("loss", "margin")),
        ({"loss": "arcface"}, {"margin": "combined", "margin_options": ""}),
        ({"dataset": "demo"}, {"rec": "", "num_classes": 1000, "embedding_size": 128}),
        ({"fp16": False, "bf16": True}, {"fp16": False, "bf16": True}),
    ],
)
def test_settings_of_the_command_line_win_over_a_recipe(changes, expected):
    settings = settings_of(read_recipe("configs/glint360k_r50"), **changes)
    assert {name: settings[name] for name in expected} == expected
