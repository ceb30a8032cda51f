"""Declarations of settings: what they allow, and how values and options are read."""

import math

import pytest

import default
from partial_fc.utils.config import Schema, Setting, SettingsError, parse_assignments, parse_options, split_options
from partial_fc.utils.options import check_options

SETTINGS = default.SETTINGS.settings
SCHEMA = Schema(
    Setting("ratio", 1.0, "", above=0, at_most=1),
    Setting("count", 4, "", at_least=2, below=10, multiple_of=2),
    Setting("steps", [1], "", item=int, at_least=1),
    Setting("margins", (1.0, 0.5), "", item=float, length=2),
    Setting("kind", "a", "", choices=("a", "bc")),
    Setting("flag", True, ""),
    Setting("part", 1.0, "", at_least=0, at_most=1, by_epoch=True),
    Setting("offset", 0, ""),
    hints={},
    alternatives=[{"ratio": 1.0, "flag": True}],
)


@pytest.mark.parametrize(
    "name, given, value",
    [
        ("ratio", math.nextafter(0, 1), math.nextafter(0, 1)),
        ("ratio", 1, 1.0),
        *(("count", number, number) for number in (2, 8)),
        ("steps", (2, 3), [2, 3]),
        ("steps", [], []),
        ("steps", 3, [3]),
        ("margins", [1, 0], (1.0, 0.0)),
        ("kind", "bc", "bc"),
        *(("part", given, [0.1, 1.0]) for given in ([0.1, 1], (0.1, 1.0))),
        ("part", 0, 0.0),
        *(("offset", number, number) for number in (2**63 - 1, 1 - 2**63)),
    ],
)
def test_values_take_the_type_of_the_default(name, given, value):
    assert repr(SCHEMA.read("", {name: given})[name]) == repr(value)
    SCHEMA.defaults()["steps"].append(4)
    assert SCHEMA.defaults()["steps"] == [1]


@pytest.mark.parametrize(
    "name, value, message",
    [
        *(("ratio", number, "above 0 and at most 1") for number in (0, math.nextafter(1, 2), -1)),
        *(("ratio", number, "a finite number, above 0") for number in (math.nan, math.inf, -math.inf, 10**400)),
        *(("ratio", value, "of type float") for value in (True, "x", None, [1.0])),
        *(("count", number, "at least 2 and below 10 and a multiple of 2") for number in (1, 0, 5, 10)),
        *(("count", value, "of type int") for value in (4.0, True)),
        ("steps", [2, 0], "contains 0, .* at least 1"),
        ("steps", [True], "contains True, .* of type int"),
        ("steps", "3", "of type list"),
        *(("margins", margins, "2 values") for margins in ((1,), (1, 0.5, 0))),
        *(("offset", number, "below 2.63") for number in (2**63, -(2**63))),
        ("margins", (1, math.nan), "contains nan, .* a finite number"),
        ("kind", "b", "did you mean 'bc'"),
        ("flag", 1, "of type bool"),
        ("part", [0.5, 2], "is 2.0, .* at most 1"),
        *(("part", value, "of type float") for value in ([], [None], [[0.5]])),
    ],
)
def test_refused_values(name, value, message):
    with pytest.raises(SettingsError, match=f"^here: .*{name}.* {message}"):
        SCHEMA.read("here", {name: value})


def test_an_alternative_replaces_the_others_unless_it_is_unused():
    assert SCHEMA.read("", {"ratio": 0.5}) == {"ratio": 0.5, "flag": True}
    assert SCHEMA.read("", {"ratio": 1.0}) == {"ratio": 1.0}
    assert SCHEMA.read("", {"ratio": 1.0, "flag": False}) == {"ratio": 1.0, "flag": False}
    with pytest.raises(SettingsError, match="ratio and flag exclude each other"):
        SCHEMA.read("", {"ratio": 0.5, "flag": False})


@pytest.mark.parametrize("options", [{"eps": 0}, {"betas": (0.9, 1.0)}, {"betas": [-0.1, 0.9]}, {"weight_decay": 1.1}])
def test_each_number_of_an_option_has_its_bounds(options):
    check_options("torch.optim", {"eps": 1e-8, "betas": (0, 0.9), "weight_decay": 1, "momentum": None})
    with pytest.raises(SettingsError, match=f"{next(iter(options))} is "):
        check_options("torch.optim", options)


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=lambda setting: setting.name)
def test_every_setting_has_a_bound_if_it_is_a_number(setting):
    is_number = (setting.item or type(setting.default)) in (int, float)
    assert bool(setting.bounds) == is_number
    with pytest.raises(SettingsError, match=f"^{setting.name} is None, but must be of type"):
        default.generate_config(changes={setting.name: None}, trainer=setting.trainer or "mxnet")


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=lambda setting: setting.name)
def test_help_lists_every_setting_with_default_type_and_bounds(setting):
    text = " ".join(default.describe_settings().split())
    start = f" {setting.name}={setting.default} {setting.help} ("
    assert start + type(setting.default).__name__ in text
    facts = text[text.index(start) + len(start) :].partition(")")[0]
    assert all(fact in facts for fact in (setting.bounds, *default.SETTINGS.aliases_of(setting.name), setting.trainer))
    assert setting.help and "\n" not in setting.help


def test_help_has_the_defaults_of_the_trainer():
    assert " log_every=20 " in default.describe_settings() and " max_grad_norm=0.0 " in default.describe_settings()
    text = default.describe_settings("torch")
    assert " log_every=50 " in text and " max_grad_norm=5.0 " in text


def test_options_are_literals_or_text():
    assert parse_options("margin_options", "m=0.4,kind=a, n=3") == {"m": 0.4, "kind": "a", "n": 3}
    assert parse_options("optimizer_options", "betas=(0.9, 0.95),eps=1e-6") == {"betas": (0.9, 0.95), "eps": 1e-6}
    assert parse_options("margin_options", "") == {}


def test_separators_of_options_are_outside_of_brackets_and_quotes():
    text = "pairs=((1,2),[3,4]),label='a,b',name=Tom's,end=1"
    options = {"pairs": "((1,2),[3,4])", "label": "'a,b'", "name": "Tom's", "end": "1"}
    assert split_options("task_options", text) == options
    assert split_options("task_options", "kind=x(y,n=3") == {"kind": "x(y", "n": "3"}


@pytest.mark.parametrize(
    "word, value",
    [
        *((f"output={text}", text) for text in ("2024", "1e5", "None", "[1]", "007", "True")),
        ("data_name=100", "100"),
        ("output='a b'", "a b"),
        *((f"val_targets={text}", ["lfw", "112"]) for text in ("lfw,112", "[lfw,112]", "['lfw', 112]", "'lfw','112'")),
        ("val_targets=2024", ["2024"]),
        ("val_targets=[]", []),
        ("part_rates=conv1=0,bn1=1e-2", ["conv1=0", "bn1=1e-2"]),
        *((f"dummy_data={text}", True) for text in ("true", "TRUE", "True")),
    ],
)
def test_text_is_read_by_the_type_of_its_setting(word, value):
    (found,) = default.SETTINGS.read("", parse_assignments([word], default.SETTINGS)).values()
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    "word, setting, options",
    [
        ("margins=1,0.4,0", "margin_options", {"m1": "1.0", "m2": "0.4", "m3": "0.0"}),
        ("margins=1,0.5,0", "margin_options", dict.fromkeys(("m1", "m2", "m3"))),  # the default of earlier versions
        (
            "task_options=path='a,b',size=(1,2),kind=a b",
            "task_options",
            {"path": "'a,b'", "size": "(1,2)", "kind": "a b"},
        ),
    ],
)
def test_each_option_has_a_key(word, setting, options):
    values = default.SETTINGS.read("", parse_assignments([word], default.SETTINGS))
    assert values == {f"{setting}.{option}": text for option, text in options.items()}
    kept = ",".join(f"{option}={text}" for option, text in options.items() if text is not None)
    assert default.SETTINGS.join_options(values) == {setting: kept}


def test_text_options_stay_text():
    class Made:
        options = (Setting("path", "", ""), Setting("count", 1, ""))

        def __init__(self, project: str, label="a", name: "str | None" = None, ratio=0.5, group: str | None = None):
            """What a tracker, a schedule or a margin may take."""

    text = "path=2024,count=3,project=1e5,label=True,name='x',ratio=1,group=7"
    options = {"path": "2024", "count": 3, "project": "1e5", "label": "True", "name": "x", "ratio": 1, "group": "7"}
    for makers in ((Made, dict), (dict, Made)):
        assert parse_options("task_options", text, *makers) == options


def test_assignments_of_the_command_line():
    words = "sample_ratio=0.1,0.1,1.0 lr_steps=[10,20] debug=true rec=/data/a=b/train.rec data_name={[]:1}"
    assert parse_assignments(words.split()) == {
        "sample_ratio": (0.1, 0.1, 1.0),
        "lr_steps": [10, 20],
        "debug": True,
        "rec": "/data/a=b/train.rec",
        "data_name": "{[]:1}",
    }
    with pytest.raises(SettingsError, match="cannot read 'debug'"):
        parse_assignments(["debug"])


def test_overlong_options_are_refused():
    with pytest.raises(SettingsError, match="optimizer_options has 1,000,000 characters, .* at most 100,000"):
        parse_options("optimizer_options", "," * 1_000_000)
