"""The file of several heads: what a head takes from it, from its loss and from the training, and what is refused."""

import json
import os

import pytest

import default
from default import heads_of
from partial_fc.training.run_folder import output_folder
from partial_fc.utils.config import SettingsError, write_settings

A, B = {"name": "a", "rec": "/sets/a", "num_classes": 20}, {"name": "b", "rec": "sub/b", "num_classes": 9}
TRAINING = {"max_update": 7, "lr_epochs": [2], "bank_folder": "/bank"}


def written(folder, heads, name="heads.json"):
    path = folder / name
    path.write_text(heads if isinstance(heads, str) else json.dumps(heads))
    return str(path)


def read(path, trainer="torch", **changes):
    return default.generate_config(changes={**TRAINING, "heads": path, **changes}, trainer=trainer)


def test_a_head_has_the_training_s_settings_and_its_own(tmp_path):
    own = {"loss": "adaface", "margin_options": "m=0.3", "sample_ratio": [0.1, 1], "weight": 2, "layer_options": "lr=3"}
    path = written(tmp_path, [A, {**B, **own, "batch_size": 5, "sampling": "weights.npy"}])
    settings = read(
        path, sampling="frequency", loss="cosface", layer_options="lr=0.5,tile_classes=7", batch_size=12, seed=3
    )
    first, second = heads_of(settings)
    assert (first.name, first.weight, second.name, second.weight) == ("a", 1.0, "b", 2.0)
    assert (settings.num_classes, settings.dataset, settings.rec) == (0, "own", "")
    assert output_folder(settings).endswith("/small-cosface-heads")  # the name of the file
    one, two = first.settings, second.settings
    assert type(one) is type(settings) and one.heads == two.heads == path
    assert (one.rec, one.num_classes, one.loss, one.batch_size) == ("/sets/a/train.rec", 20, "cosface", 12)
    assert one.margin_options == "m1=1.0,m2=0.0,m3=0.4" and one.layer_options == "lr=0.5,tile_classes=7"
    assert (two.rec, two.num_classes, two.batch_size) == (f"{tmp_path}/sub/b/train.rec", 9, 5)
    assert (two.loss, two.margin, two.margin_options) == ("adaface", "adaface", "m=0.3")
    assert two.layer_options == "lr=3,tile_classes=7" and two.sample_ratio == [0.1, 1.0]
    assert (one.sampling, two.sampling) == ("frequency", f"{tmp_path}/weights.npy")
    # Heads after the first draw other numbers, and store their centers in other files.
    assert (one.seed, one.bank_folder) == (3, "/bank") and two.bank_folder == "/bank/b"
    assert two.seed not in (0, 3) and two.seed == heads_of(settings)[1].settings.seed
    assert two.seed != heads_of(read(path, seed=4))[1].settings.seed
    expected = {**B, **own, "batch_size": 5, "rec": two.rec, "sampling": two.sampling}
    assert second.own == {key: expected[key] for key in expected if key not in ("name", "weight")}


def test_the_heads_are_those_that_were_read_with_the_settings(tmp_path):
    settings = read(written(tmp_path, [A, B]))
    expected = heads_of(settings)
    written(tmp_path, "")
    assert default.heads == expected and type(default.heads[1].settings) is type(settings)
    default.generate_config(trainer="torch")
    assert [head.name for head in default.heads] == [""]


def test_a_training_without_heads_is_one_head_without_a_name():
    settings = default.generate_config(trainer="torch")
    (head,) = heads_of(settings)
    assert (head.name, head.weight, head.own) == ("", 1.0, {}) and head.settings is settings


def test_toml_and_both_forms_of_json_are_the_same(tmp_path):
    pytest.importorskip("tomllib")
    toml = "\n".join(
        "[[heads]]\n" + "\n".join(f"{key} = {json.dumps(value)}" for key, value in head.items()) for head in (A, B)
    )
    files = written(tmp_path, toml, "a.toml"), written(tmp_path, [A, B]), written(tmp_path, {"heads": [A, B]}, "b.json")
    first, *others = ([(head.name, head.own) for head in heads_of(read(file))] for file in files)
    assert others == [first, first]


def test_the_saved_settings_start_the_same_heads(tmp_path):
    settings = read(written(tmp_path, [A, B]), loss="cosface")
    write_settings(str(tmp_path / "settings.json"), settings)
    again = default.generate_config(config_file=str(tmp_path / "settings.json"), trainer="torch")
    assert again == settings and heads_of(again) == heads_of(settings)


BAD = [
    ([{**A, "name": "a b"}], "head 1: name is 'a b'"),
    ([{"rec": "/a"}], "head 1: name is None"),
    ([A, A], "head a: name is the name of an earlier head"),
    ([A, {**B, "num_clases": 3}], "head b: unknown key 'num_clases': did you mean 'num_classes'"),
    ([A, {**B, "lr": 3}], "head b: unknown key 'lr'"),
    ([A, {**B, "weight": 0}], "head b: weight is 0.*above 0"),
    ([A, {**B, "weight": "1"}], "head b: weight is '1'"),
    ([A, {**B, "num_classes": "9"}], "head b: num_classes is '9'"),
    ([A, {**B, "sample_ratio": 1.5}], "head b: sample_ratio is 1.5"),
    ([A, {**B, "loss": "arcfac"}], "head b: unknown loss 'arcfac'"),
    ([A, {**B, "loss": "adaface", "margin_options": "m1=2"}], "head b: margin_options has m1"),
    ([A, {**B, "margin_options": "m3"}], "head b: margin_options is 'm3'"),
    ([A, {"name": "b", "rec": "/b", "labels": "/b.npy"}], "head b: num_classes is not set"),
    ([], "has 0 heads, but must have 1 to 64"),
    ({"head": [A]}, "has no list of heads"),
    ([A, 3], "has no list of heads"),
]


@pytest.mark.parametrize("heads, message", BAD)
def test_a_bad_file_is_refused_with_its_path_and_the_head_and_the_key(heads, message, tmp_path):
    path = written(tmp_path, heads)
    with pytest.raises(SettingsError, match=f"^(cannot read )?{path}:? {message}"):
        read(path)


def test_a_missing_or_large_file_and_the_other_trainer_are_refused(tmp_path):
    with pytest.raises(SettingsError, match=f"cannot read the heads in {tmp_path}/none.json: No such file"):
        read(str(tmp_path / "none.json"))
    with pytest.raises(SettingsError, match=f"cannot read the heads in {tmp_path}/.*: Expecting"):
        read(written(tmp_path, "[[heads]]"))
    with pytest.raises(SettingsError, match="it has 'rec' twice"):
        read(written(tmp_path, '[{"name": "b", "rec": "/b", "rec": "/c"}]'))
    with pytest.raises(SettingsError, match="more than 1,048,576 bytes"):
        read(written(tmp_path, " " * (1 << 20) + "[]"))
    with pytest.raises(SettingsError, match="heads is .* only the torch trainer has this setting"):
        read(written(tmp_path, [A]), trainer="mxnet")
    with pytest.raises(SettingsError, match="head a: teacher and heads are both set"):
        read(written(tmp_path, [A]), teacher="models/large")


def test_code_in_a_file_of_heads_needs_trust(tmp_path):
    """Whoever names the file: its content may be a stranger's."""
    path = written(tmp_path, [A, {**B, "margin": "own_margins:Mine"}])
    saved = tmp_path / "settings.json"
    write_settings(str(saved), {**TRAINING, "heads": path})
    for attempt in (lambda: default.generate_config(config_file=str(saved), trainer="torch"), lambda: read(path)):
        with pytest.raises(SettingsError, match=f"{path} sets margin to 'own_margins:Mine', which would be imported"):
            attempt()
    trusted = default.generate_config(config_file=str(saved), trainer="torch", trust_code=True)
    assert heads_of(trusted)[1].settings.loss == "own"
    assert os.path.isabs(trusted.heads)
