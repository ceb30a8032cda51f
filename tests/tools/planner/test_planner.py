"""The planner: sums by hand, published figures, verdicts and output."""

import json
import math

import pytest

from command_line import exit_code
from partial_fc_tools.__main__ import main
from partial_fc_tools.planner import Case, plan
from partial_fc_tools.planner.case import MIB
from partial_fc_tools.planner.roofline import Rates, least_times
from partial_fc_tools.planner.verdict import judge


def nbytes(planned, name, place=None):
    """Returns the bytes of the parts whose names start with `name`."""
    return sum(part.nbytes for part in planned.parts if part.name.startswith(name) and place in (None, part.place))


def moved(planned, name):
    """Returns (out, back) of the transfer whose name starts with `name`."""
    (transfer,) = [transfer for transfer in planned.traffic if transfer.name.startswith(name)]
    return transfer.out, transfer.back


SMALL = Case(1001, ranks=2, batch=4, embedding=8, ratio=0.1, tile_classes=20, logits_cache_mb=0)
TORCH = SMALL._replace(trainer="torch")
SLOPED = TORCH._replace(margin="curricularface", logits_cache_mb=1)
HOST = Case(1_000_000, 8, ratio=0.1, bank="host")
HOST_ROWS = 12_500 * 512 * 4
R50 = Case(1000, 8, network="r50")
GRADIENTS = 43_590_848  # of r50; 30,707,136 of them are those of convolutions and PReLUs
SUMS = [  # case; bytes by the beginning of a part's name and, after @, its place; (out, back) of transfers
    (
        SMALL,
        {"class centers@device": 501 * 8 * 4, "states of their": 501 * 8 * 4, "logits of 2 tiles": 2 * (8 + 1) * 20 * 4}
        | {"sampled centers": 20 * 8 * 4, "momentum of a tile's": 20 * 8 * 4},
        {"all-gather of features": (4 * (8 + 2) * 4,) * 2, "all-gather of statistics": (3 * 8 * 4,) * 2}
        | {"reduce-scatter": (4 * 8 * 4,) * 2, "states": (50 * 8 * 4,) * 2}
        | {"class centers": (2 * 50 * 8 * 4 + 4 * 8 * 4, 50 * 8 * 4)},
    ),
    (
        TORCH,
        {"class centers@device": 501 * 8 * 4, "states of their": 501 * 8 * 4, "logits of 1 tile": (8 + 1) * 20 * 4}
        | {"sampled centers": 20 * 8 * 4, "gradient of a tile's": 20 * 8 * 4, "indices@device": 8 * 50}
        | {"states, intermediate results@device": 20 * 8 * 4, "slopes": 0}
        | {"features and their gradients": (4 * 8 + 4 * 4) * 8 * 4},
        {"reduce-scatter": (4 * 8 * 4,) * 2},
    ),
    # Two sub-centers: twice the rows, in tiles of half as many classes; a logit is the larger of two cosines.
    (
        TORCH._replace(sub_centers=2),
        {"class centers@device": 501 * 16 * 4, "states of their": 501 * 16 * 4, "logits of 1 tile": (8 + 2) * 10 * 4}
        | {"cosines of a tile's sub-centers": 8 * 20 * 4 + 8 * 10, "sampled centers": 10 * 16 * 4}
        | {"indices@device": 8 * 100, "features and their gradients": (4 * 8 + 4 * 4) * 8 * 4},
        {"class centers": (2 * 50 * 16 * 4 + 4 * 16 * 4, 50 * 16 * 4), "states": (50 * 16 * 4,) * 2},
    ),
    (
        TORCH._replace(sub_centers=2, bank="host"),
        {"sampled centers and states, of": 2 * 2 * 50 * 16 * 4},
        {"centers and states": (2 * 50 * 16 * 4,) * 2},
    ),
    # 16 bits: half the bank and the copies between host and GPU, and float32 copies of the tile.
    (
        TORCH._replace(center_dtype="bfloat16", optimizer="adamw", ratio=1.0),
        {"class centers@device": 501 * 8 * 2, "states of their": 501 * (8 * 2 + 8 * 2 + 4)}
        | {"float32 copies of the centers": 20 * 8 * 4, "sampled centers": 0, "gradient of a tile's": 20 * 8 * 4}
        | {"states, intermediate results@device": 20 * (8 + 8 + 1) * 4 + 2 * 20 * 8 * 4},
        {"class centers": (2 * 501 * 8 * 2 + 4 * 8 * 2, 501 * 8 * 2), "states": (501 * (8 * 2 + 8 * 2 + 4),) * 2},
    ),
    (
        TORCH._replace(center_dtype="bfloat16", bank="host"),
        {"sampled centers and states, of": 2 * 2 * 50 * 8 * 2, "float32 copies of the centers": 20 * 8 * 4},
        {"centers and states": (2 * 50 * 8 * 2,) * 2},
    ),
    (
        TORCH._replace(unit_copy="always"),
        {"unit rows of the centers": 501 * 8 * 2, "class centers@device": 501 * 8 * 4},
        {},
    ),
    (SLOPED, {"slopes of the logits": 8 * 50 * 4}, {"all-gather of the targets' cosines": (64, 64)}),
    # Three micro-batches read the centers and exchange features each, and update the centers once.
    (
        TORCH._replace(gradient_acc=3),
        {"gradient of the sampled centers": 50 * 8 * 4, "features and their gradients": (4 * 8 + 4 * 4) * 8 * 4},
        {"all-gather of all labels": (3 * 4 * 8,) * 2, "all-gather of features": (3 * 4 * (8 + 2) * 4,) * 2}
        | {"all-gather of statistics": (3 * 3 * 8 * 4,) * 2, "reduce-scatter": (3 * 4 * 8 * 4,) * 2}
        | {"class centers": (3 * (2 * 50 * 8 * 4 + 4 * 8 * 4) + 50 * 8 * 4, 50 * 8 * 4)}
        | {"states": (50 * 8 * 4,) * 2},
    ),
    # A bank on the host is copied once if logits are kept, and twice if not.
    (HOST._replace(logits_cache_mb=0), {}, {"centers to the GPU": (2 * HOST_ROWS, HOST_ROWS)}),
    (
        HOST._replace(tile_classes=1000),
        {"momentum of a tile's@host": 2_048_000, "a tile between@host": 2 * 2_048_000, "class centers@device": 0}
        | {"sampled centers": HOST_ROWS, "indices and": 2 * 8 * 12_500 + 48 * 13 * 512},
        {"centers to the GPU": (HOST_ROWS, HOST_ROWS)},
    ),
    # Kept copies are read for the update, where the GPU has them.
    (Case(10, embedding=8, bank="host"), {}, {"class centers": ((1 + 1) * 10 * 8 * 4 + 10 * 8 * 4, 10 * 8 * 4)}),
    # Parts of the backbone and of the process.
    (
        R50,
        {"activations": 64 * (18_114_560 + 802_816) * 4, "parameters and": (GRADIENTS + 37_120 + 2 * 512) * 4}
        | {"float32 master": 0, "activations in oneDNN's": 0, "Horovod's fusion@device": 128 * MIB}
        | {"images of the next@host": 64 * 3 * 112 * 112 * 4},
        {"all-reduce": (2 * 7 * GRADIENTS * 4 // 8,) * 2},
    ),
    # With fp16 the gradients of convolutions are halved, also between ranks.
    (
        R50._replace(fp16=True),
        {"float32 master": 30_707_136 * 4, "activations": 64 * (18_114_560 + 802_816) * 2},
        {"all-reduce": (2 * 7 * (GRADIENTS * 4 - 30_707_136 * 2) // 8,) * 2},
    ),
    (Case(1000, network="r18", device="cpu"), {"activations in oneDNN's": 64 * 11_942_912 * 4, "Horovod's": 0}, {}),
]


@pytest.mark.parametrize("case, parts, moves", SUMS)
def test_sums_by_hand(case, parts, moves):
    planned = plan(case)
    assert {name: nbytes(planned, *name.split("@")) for name in parts} == parts
    assert {name: moved(planned, name) for name in moves} == moves
    assert planned.memory("device") == sum(part.nbytes for part in planned.parts if part.place == "device")


def test_the_sizes_of_the_layer():
    assert plan(SMALL).layer[:5] == (8, 501, 50, 20, 3)  # G, L, S, T, tiles
    # Without negatives, a step has at most one center per image.
    assert [plan(Case(classes, ranks=2, batch=4, ratio=0)).layer.sampled for classes in (1001, 10)] == [8, 5]
    micro_batches = Case(1001, ranks=2, batch=4, ratio=0, trainer="torch", gradient_acc=3)
    assert plan(micro_batches).layer.sampled == 24
    assert plan(Case(100, ratio=0.1, tile_classes=50)).layer.tile == 10


@pytest.mark.parametrize("ratio", [0.5, 1.0])
@pytest.mark.parametrize("bank", ["gpu", "host"])
@pytest.mark.parametrize("trainer", ["mxnet", "torch"])
def test_logits_and_copied_centers_are_kept_if_both_fit(ratio, bank, trainer):
    """The limit is exact to the byte, as in tiled_softmax.py."""
    case, gathered, elsewhere = Case(4000, 2, 8, 16, ratio, bank=bank, trainer=trainer), ratio < 1, bank == "host"
    # PyTorch's staged rows of a bank on the host serve both passes.
    copied = gathered and not elsewhere if trainer == "torch" else gathered or elsewhere
    needed = 4 * (16 + 16 * copied) * int(2000 * case.ratio)
    classes = case.classes * MIB // needed  # fill one MiB
    fits, exceeds = (plan(case._replace(classes=count // 4 * 4, logits_cache_mb=1)) for count in (classes, classes + 8))
    assert fits.layer.keeps and not exceeds.layer.keeps


@pytest.mark.parametrize("optimizer, widths", [("sgd", [16]), ("adamw", [16, 16, 1]), ("adagrad", [1])])
def test_the_states_of_an_optimizer(optimizer, widths):
    case = Case(80_000, 2, 4, 16, ratio=0.1, tile_classes=20, logits_cache_mb=0, trainer="torch", optimizer=optimizer)
    planned, on_host = (plan(case._replace(bank=bank)) for bank in ("gpu", "host"))
    assert nbytes(planned, "states of", "device") == nbytes(on_host, "states of", "host") == 160_000 * sum(widths)
    assert moved(planned, "states") == (16_000 * sum(widths),) * 2
    assert moved(on_host, "centers and states") == (16_000 * (16 + sum(widths)),) * 2
    assert nbytes(on_host, "sampled centers and states", "device") == 2 * 16_000 * (16 + sum(widths))


def with_textbook_layer(planned):
    """Returns the device memory with the original's layer, as in benchmarks/textbook_mxnet.py.

    It has logits, one-hot labels, exponentials, probabilities and gradient (G, S); unit centers and their gradient
    (S, E); and copies of centers and momentum if they are sampled.
    """
    layer, embedding = planned.layer, planned.case.embedding
    ours = sum(part.nbytes for part in planned.parts if part.place == "device" and part.group == "layer")
    bank = nbytes(planned, "class centers") + nbytes(planned, "states of their")
    textbook = 4 * layer.sampled * (5 * layer.batch + (4 if layer.gathered else 2) * embedding)
    return planned.memory("device") - ours + bank + textbook


@pytest.mark.parametrize(
    "classes, ranks, batch, ratio, published",
    [
        (1_000_000, 8, 1024, 1.0, 10408),
        (1_000_000, 8, 1024, 0.1, 8100),
        (10_000_000, 64, 2048, 1.0, 9684),
        (10_000_000, 64, 4096, 0.1, 6722),
    ],
)
def test_memory_published_for_2080_ti(classes, ranks, batch, ratio, published):
    """The table in the README of deepinsight/insightface recognition/partial_fc; MiB, r50, mixed precision."""
    planned = plan(Case(classes, ranks, batch // ranks, ratio=ratio, network="r50", fp16=True))
    assert with_textbook_layer(planned) / MIB == pytest.approx(published, rel=0.1)
    assert planned.memory("device") / MIB < published


def test_remedies_are_the_smallest_changes_that_make_it_fit():
    case = Case(2_000_000, 2, ratio=0.5, network="r18", logits_cache_mb=4096)
    given = plan(case).memory("device") - 300 * MIB
    verdict = judge(plan(case), given)
    assert not verdict.fits and set(verdict.remedies) == {"ranks", "batch", "ratio", "logits_cache_mb", "fp16", "bank"}
    for name, value in verdict.remedies.items():
        assert plan(case._replace(**{name: value})).memory("device") <= given, name
    for name, less in (("ranks", -1), ("batch", 1), ("ratio", 0.01)):
        assert plan(case._replace(**{name: verdict.remedies[name] + less})).memory("device") > given, name
    assert judge(plan(Case(1000, network="r50")), MIB).remedies == {}
    assert judge(plan(Case(10_000_000, bank="host")), given).largest.place == "device"
    needed = plan(case).memory("device")
    assert judge(plan(case), needed)[:2] == (True, needed) and not judge(plan(case), needed - 1).fits


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"ratio": 1.5}, "sample_ratio"),
        ({"device": "cpu", "fp16": True}, "float16"),
        ({"gradient_acc": 2}, "the mxnet trainer has no gradient-acc 2: plan it with --trainer torch"),
        ({"network": "r51"}, "unknown network of the mxnet trainer 'r51': did you mean 'r50'"),
    ],
)
def test_invalid_cases_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        plan(Case(**{"classes": 1000, **changes}))


def test_the_tables_show_all_parts_and_their_sums(capsys):
    words = "plan --classes 10000000 --ranks 8 --ratio 0.1 --network r50 --fp16 --gpu-memory 10.76 --tflops 312"
    main(words.split())
    shown = capsys.readouterr().out
    planned = plan(Case(10_000_000, 8, ratio=0.1, network="r50", fp16=True))
    times = least_times(planned, Rates(312e12, 312e12))
    rows = [(part.name, f"{part.nbytes / MIB:,.1f}") for part in planned.parts]
    rows += [(time.name, f"{1e3 * time.seconds:,.2f}") for time in times]
    for name, number in rows:
        assert any(name in line and number in line for line in shown.splitlines()), name
    memory, seconds = (line.split()[1:] for line in shown.splitlines() if line.startswith("total"))
    assert memory == [f"{planned.memory(place) / MIB:,.1f}" for place in ("device", "host")]
    total = sum(time.seconds for time in times)
    assert seconds == [f"{1e3 * total:,.2f}"] and f"At most {8 * 64 / total:,.0f} samples/s" in shown
    assert shown.endswith("It fits: 9.73 of 10.76 GiB of a GPU, 10% free.\n")
    main([*words.split(), "--classes", "30000000"])
    last = capsys.readouterr().out.splitlines()[-1]
    assert "does not fit" in last and "layer: class centers" in last and "--ranks" in last and "--bank host" in last


OF_LAYER = {"ranks": 2, "batch": 3, "embedding": 64, "ratio": 0.5, "tile_classes": 10, "logits_cache_mb": 5}
CASES = [
    {"trainer": "torch", "optimizer": "adagrad", "margin": "magface", "bank": "host", **OF_LAYER},
    {"trainer": "torch", "backbone_optimizer": "adamw", "ema": True, "gradient_dtype": "bfloat16", "gradient_acc": 2},
    {"trainer": "torch", "unit_copy": "always"},
    {"trainer": "torch", "activation_checkpointing": True, "sub_centers": 3, "center_dtype": "bfloat16"},
    {"trainer": "mxnet", "network": "small", "fp16": True},
    {"trainer": "mxnet", "network": "small", "device": "cpu", "bank": "file"},
]


def printed(capsys, *words):
    main(["plan", *words, "--json"])
    return json.loads(capsys.readouterr().out)


def shown(case):
    """The case in JSON."""
    return {**case._asdict(), "heads": {}}


def test_the_cases_have_every_option_except_for_files():
    named = {"classes", *(name for fields in CASES for name in fields)}
    assert set(Case._fields) - named == {"task", "task_options", "config", "heads"}


@pytest.mark.parametrize("fields", CASES)
def test_every_option_reaches_the_case(fields, capsys):
    words = ["--classes", "1000"]
    for name, value in fields.items():
        words += [f"--{name.replace('_', '-')}"] + [str(value)] * (value is not True)
    assert printed(capsys, *words)["case"] == shown(Case(1000, **fields))


def test_every_setting_reaches_the_case_unless_an_option_replaces_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    settings = {"num_classes": 1000, "batch_size": 3, "embedding_size": 64, "center_optimizer": "adagrad"}
    settings |= {"optimizer": "adamw", "margin": "magface", "activation_checkpointing": True, "tile_classes": 10}
    settings |= {"gradient_dtype": "bfloat16", "gradient_acc": 2, "logits_cache_mb": 0, "sample_ratio": [0.1, 0.5, 0.2]}
    settings |= {"ema_decay": 0.9, "bank_on_gpu": False, "task": "faces"}
    settings |= {"layer_options": "sub_centers=3,center_dtype=bfloat16"}
    fields = {"batch": 3, "embedding": 64, "optimizer": "adagrad", "backbone_optimizer": "adamw", "margin": "magface"}
    fields |= {"activation_checkpointing": True, "tile_classes": 10, "gradient_dtype": "bfloat16", "gradient_acc": 2}
    fields |= {"sub_centers": 3, "center_dtype": "bfloat16"}
    case = Case(1000, trainer="torch", logits_cache_mb=0, ratio=0.5, ema=True, bank="host", **fields)
    words = ["--config", "settings.json", "--trainer", "torch"]
    other = {"bank_folder": "/disk", "ema_decay": 0.0, "logits_cache_mb": -1}
    without = case._replace(bank="file", ema=False, logits_cache_mb=256)
    mean = {**other, "average_checkpoints": 3}
    for changes, expected in (({}, case), (other, without), (mean, without._replace(ema=True))):
        (tmp_path / "settings.json").write_text(json.dumps({**settings, **changes}))
        expected = expected._replace(config="settings.json")
        assert printed(capsys, *words)["case"] == shown(expected)
        assert printed(capsys, *words, "--batch", "5")["case"] == shown(expected._replace(batch=5))


HEADS = [
    {"name": "a", "num_classes": 1000, "sample_ratio": 0.5},
    {
        "name": "b",
        "num_classes": 200,
        "batch_size": 12,
        "loss": "curricularface",
        "weight": 0.3,
        "layer_options": "sub_centers=2",
    },
]


def test_heads_add_their_banks_and_transfers_and_share_what_a_step_frees(tmp_path, capsys):
    (tmp_path / "heads.json").write_text(json.dumps(HEADS))
    common = {"ranks": 2, "embedding": 16, "trainer": "torch", "bank": "host", "tile_classes": 64}
    second_alone = Case(200, batch=12, margin="curricularface", sub_centers=2, **common)
    alone = plan(Case(1000, batch=8, ratio=0.5, **common)), plan(second_alone)
    words = ["--ranks", "2", "--batch", "8", "--embedding", "16", "--bank", "host", "--tile-classes", "64"]
    words += ["--heads", str(tmp_path / "heads.json")]
    both = printed(capsys, *words, "--trainer", "torch")
    total = {(part["name"], part["place"]): part["nbytes"] for part in both["memory"]}
    first, second = ({(part.name, part.place): part.nbytes for part in each.parts} for each in alone)
    kept = ("class centers", "states of", "sampled centers and states")
    expected = {(f"{name}, head b" if name.startswith(kept) else name, place) for name, place in second}
    assert total.keys() == first.keys() | expected
    for name, place in first.keys() & second.keys():
        values = first[name, place], second[name, place]
        if name.startswith(kept):
            assert (total[name, place], total[f"{name}, head b", place]) == values
        else:
            assert total[name, place] == max(values)
    assert (total["class centers", "host"], total["class centers, head b", "host"]) == (500 * 16 * 4, 100 * 2 * 16 * 4)
    moves = {move["name"]: (move["out"], move["back"]) for move in both["moves"]}
    own = [{move.name: (move.out, move.back) for move in each.traffic} for each in alone]
    assert moves == own[0] | {f"{name}, head b": moved for name, moved in own[1].items()}
    assert exit_code("plan", *words) == 2 and "the mxnet trainer has no heads" in capsys.readouterr().err
    (tmp_path / "heads.json").write_text(json.dumps([HEADS[0], {"name": "b"}]))
    assert exit_code("plan", *words) == 2 and "head b: num_classes is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    "changes",
    [
        {"loss": "arcfac"},
        {"loss": ["b"]},
        {"num_classes": "x"},
        {"layer_options": 3},
        {"sample_ratio": "q"},
        {"batch_size": 0},
    ],
)
def test_a_bad_value_of_a_head_is_refused(changes, tmp_path, capsys):
    (tmp_path / "heads.json").write_text(json.dumps([HEADS[0], {**HEADS[1], **changes}]))
    assert exit_code("plan", "--trainer", "torch", "--heads", str(tmp_path / "heads.json")) == 2
    (name,), error = changes, capsys.readouterr().err
    assert "heads.json: head b: " in error and name in error and "Traceback" not in error


def test_every_rate_has_its_own_unit(capsys):
    words = "--classes 1000 --ranks 2 --ratio 0.1 --bank host --network small --fp16".split()
    planned = plan(Case(1000, 2, ratio=0.1, bank="host", network="small", fp16=True))
    for options, rates in (
        ("--tflops 3 --layer-tflops 0.002", Rates(3e12, 2e9)),
        ("--tflops 0.003", Rates(3e9, 3e9)),
        ("--memory-gbs 5 --bus-gbs 0.1 --network-gbit 1.6", Rates(math.inf, math.inf, 5e9, 1e8, 2e8)),
    ):
        shown = printed(capsys, *words, *options.split())
        assert shown["times"] == [time._asdict() for time in least_times(planned, rates)]
        assert shown["memory"] == [part._asdict() for part in planned.parts]
        assert shown["moves"] == [transfer._asdict() for transfer in planned.traffic]


@pytest.mark.parametrize("options", ["", "--classes 10 --device cpu --gpu-memory 11", "--classes 10 --tflops 0"])
def test_the_last_line_has_the_error(options, capsys):
    assert exit_code("plan", *options.split()) == 2
    assert "error: " in capsys.readouterr().err.splitlines()[-1]
