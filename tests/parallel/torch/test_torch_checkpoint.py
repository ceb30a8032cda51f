"""Checkpoints of a training on TorchEngine, and resuming from them bit for bit."""

from functools import partial

import numpy as np
import pytest
import torch
from easydict import EasyDict as edict
from torch_layer import COMBINED_BELOW, RANK, E, all_ranks
from torch_training import Training, build_engine, small_backbone, small_transformer

import checkpoint_cases
from checkpoint_cases import CLASSES, EPOCH, STEPS
from partial_fc.checkpoint import CheckpointFolder, SavedClasses
from partial_fc.checkpoint.layout import center_file
from partial_fc.training.saved_training import SavedTraining, find_checkpoint
from partial_fc_torch import AdaFace, CurricularFace
from partial_fc_torch.collectives import default_collectives


@pytest.fixture
def folder(folder):
    return CheckpointFolder(folder, kept=9)


SUB_CENTERS, NARROW = {"sub_centers": 3}, {"center_dtype": "bfloat16"}


# The initial loss scale of float16 overflows in these steps.
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"momentum": 0.0},
        {"autocast": torch.float16},
        pytest.param({"optimizer": "adamw"}, marks=COMBINED_BELOW),
        pytest.param({"optimizer": "adagrad"}, marks=COMBINED_BELOW),
        pytest.param({"gradient_acc": 3}, marks=COMBINED_BELOW),
        pytest.param({"of_layer": SUB_CENTERS}, marks=COMBINED_BELOW),
        pytest.param({"of_layer": NARROW}, marks=COMBINED_BELOW),
        {"of_layer": {**NARROW, **SUB_CENTERS}, "optimizer": "adamw", "gradient_acc": 3},
        {"of_layer": NARROW, "optimizer": "adagrad"},
    ],
)
def test_a_resumed_training_equals_an_uninterrupted_one_bit_for_bit(folder, changes):
    make = partial(Training, max_grad_norm=0.5, **changes)
    checkpoint_cases.a_resumed_training_equals_an_uninterrupted_one(make, folder)


ONE_RANK = pytest.mark.world_size(1)  # the backbone is the same on all ranks


@pytest.mark.parametrize(
    "name, options",
    [
        ("sgd", {"nesterov": True}),
        pytest.param("adamw", {"betas": (0.8, 0.9)}, marks=ONE_RANK),
        pytest.param("torch.optim:NAdam", {}, marks=ONE_RANK),
        pytest.param("torch.optim:Rprop", {}, marks=ONE_RANK),
        pytest.param("torch.optim:Adafactor", {}, marks=ONE_RANK),
    ],
)
def test_every_optimizer_of_the_backbone_resumes_bit_for_bit(name, options, folder):
    make = partial(Training, backbone_optimizer=name, options=options)
    checkpoint_cases.a_resumed_training_equals_an_uninterrupted_one(make, folder)
    assert make().fit(1).engine.optimizer.states()


def test_a_network_drops_the_same_after_resuming(folder):
    """Features, branches and patches, different ones on every rank."""
    make = partial(Training, make=small_transformer, shape=(3, 32, 32))
    checkpoint_cases.a_resumed_training_equals_an_uninterrupted_one(make, folder)


@pytest.mark.parametrize("margin", [AdaFace, CurricularFace])
def test_the_state_of_the_margin_is_restored(folder, margin):
    make = partial(Training, margin=margin)
    checkpoint_cases.a_resumed_training_equals_an_uninterrupted_one(make, folder)
    state = {name for name in make().engine.parameters() if name.startswith("margin:")}
    assert state == {"margin:t"} if margin is CurricularFace else state == {"margin:norm_mean", "margin:norm_std"}


def test_without_a_saved_average_it_starts_with_the_weights(folder, caplog):
    saved = checkpoint_cases.newest(Training().fit(2, folder, every=100), folder)
    engine = Training(ema_decay=0.9).fit(2, saved=saved).engine
    message = "the average starts at update 2"
    assert (message in caplog.text) == (RANK == 0)
    arrays = engine.parameters()
    assert all((arrays[f"ema:{name}"] == arrays[name]).all() for name in arrays if name.startswith("arg:"))


def test_the_mean_of_the_last_epochs_resumes_bit_for_bit(folder, caplog):
    make = partial(Training, last_ends=(1, [2 * EPOCH, STEPS]))
    checkpoint_cases.a_resumed_training_equals_an_uninterrupted_one(make, folder)
    saved = SavedTraining.open(dict(folder.complete())[STEPS - 1], default_collectives)
    for first, ends, missed in ((2, [STEPS, 3 * EPOCH], False), (0, [EPOCH, STEPS], True)):
        assert Training(last_ends=(first, ends)).fit(STEPS, saved=saved).engine.mean.count == 1
        assert (f"no mean of the weights from epoch {first} on" in caplog.text) == (missed and RANK == 0)


def test_a_training_without_an_average_resumes_from_a_checkpoint_with_one(folder):
    saved = checkpoint_cases.newest(Training(ema_decay=0.9).fit(2, folder, every=100), folder)
    resumed, whole = Training().fit(4, saved=saved), Training().fit(4)
    checkpoint_cases.equal(resumed.everything(), whole.everything())


def test_the_state_of_another_margin_is_left_out(folder, caplog):
    saved = checkpoint_cases.newest(Training(margin=AdaFace).fit(2, folder, every=100), folder)
    resumed = Training(margin=CurricularFace).fit(2, saved=saved)
    message = "no state of CurricularFace (t), but norm_mean, norm_std"
    assert (message in caplog.text) == (RANK == 0)
    assert resumed.engine.layer.margin.t == 0
    assert Training().fit(3, saved=saved).engine.num_update == 3


@pytest.mark.parametrize("of_layer", [{}, NARROW])
def test_a_training_with_centers_in_files_resumes_bit_for_bit(folder, of_layer):
    make = partial(Training, folder=folder.path, optimizer="adamw", of_layer=of_layer)
    checkpoint_cases.a_resumed_training_equals_an_uninterrupted_one(make, folder)
    assert make().engine.memory_bank.in_files


def test_a_save_in_the_background_saves_the_state_of_its_step(folder):
    checkpoint_cases.a_save_in_the_background_saves_the_state_of_its_step(Training, folder)


def test_checkpoints_by_time_follow_the_clock_of_rank_zero(folder, monkeypatch):
    checkpoint_cases.checkpoints_by_time_follow_the_clock_of_rank_zero(Training, folder, monkeypatch)


def test_a_checkpoint_of_another_training_is_refused(folder):
    cases = [
        ({"classes": CLASSES + 1}, f"{CLASSES} classes, this training has {CLASSES + 1}"),
        ({"width": E + 1}, f"set embedding_size={E}"),
        ({"of_layer": SUB_CENTERS}, "have 1 center each, .* have 3: set layer_options=sub_centers=1"),
        ({"optimizer": "adagrad"}, "weight_mom of .* weight_sum: set "),
        ({"momentum": 0.0}, "has no states, but .* had momentum: set "),
        ({"backbone_optimizer": "adamw"}, "has exp_avg, exp_avg_sq, step, but .* had momentum: set optimizer"),
    ]
    checkpoint_cases.a_checkpoint_of_another_training_is_refused(Training, folder, cases)


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": "sgd"},
        {"optimizer": "adamw"},
        {"optimizer": "adagrad", "of_layer": SUB_CENTERS},
        {"of_layer": NARROW},
    ],
)
def test_mapped_classes_are_restored_and_new_ones_keep_their_initial_centers(folder, changes):
    make = partial(Training, **changes)
    checkpoint_cases.mapped_classes_are_restored_and_new_ones_keep_their_initial_centers(make, folder)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "adagrad"])
@pytest.mark.parametrize("saved_as, loaded_as", [({}, NARROW), (NARROW, {})])
def test_centers_of_one_type_are_read_as_the_other(folder, optimizer, saved_as, loaded_as):
    first = Training(optimizer=optimizer, of_layer=saved_as).fit(3, folder, every=100)
    second = Training(optimizer=optimizer, of_layer=loaded_as).fit(3, saved=checkpoint_cases.newest(first, folder))
    for field in first.engine.layer.widths:
        rows, loaded = (training.engine.layer.rows(field) for training in (first, second))
        assert torch.equal(loaded, rows.to(loaded.dtype))
    bank = first.engine.memory_bank
    (path,) = folder.complete()[0][1:]
    shape = np.load(f"{path}/{center_file('weight', RANK)}", mmap_mode="r")
    assert shape.nbytes == bank.num_local * E * (2 if saved_as else 4)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_16_bit_centers_move_to_another_number_of_ranks(ranks):
    engine = build_engine(small_backbone(), optimizer="adamw", of_layer=NARROW)
    bits = np.random.default_rng(0).integers(0, 0x7F00, (3, CLASSES, E), np.uint16)  # positive and finite
    updates = np.arange(CLASSES, dtype=np.float32)[:, None] + 300
    shards = {**dict(zip(("weight", "weight_exp_avg", "weight_exp_avg_sq"), bits)), "weight_updates": updates}
    saved = SavedClasses({field: np.array_split(rows, ranks) for field, rows in shards.items()})
    engine.memory_bank.load_classes(saved)
    for field, expected in shards.items():
        (local,) = engine.memory_bank.host_rows(field, copied=True)
        np.testing.assert_array_equal(all_ranks(local), expected)


def test_the_sub_centers_of_a_class_move_together_to_another_number_of_ranks(monkeypatch):
    monkeypatch.setattr("partial_fc.checkpoint.class_centers.ROWS", 2)  # classes that are read at a time
    engine = build_engine(small_backbone(), optimizer="adagrad", of_layer=SUB_CENTERS)
    rows = np.random.default_rng(0).standard_normal((CLASSES, 3, E)).astype(np.float32)
    sums = np.abs(rows[:, :, 0])
    shards = {"weight": rows.reshape(CLASSES, 3 * E), "weight_sum": sums}
    saved = SavedClasses({field: np.split(values, [6, 11]) for field, values in shards.items()}, E)
    engine.memory_bank.load_classes(saved)
    np.testing.assert_array_equal(all_ranks(engine.layer.rows("weight")), rows.reshape(3 * CLASSES, E))
    np.testing.assert_array_equal(all_ranks(engine.layer.rows("weight_sum")), sums.reshape(3 * CLASSES, 1))
    (copied,) = engine.memory_bank.host_rows("weight", copied=True)
    start, stop = engine.memory_bank.class_start, engine.memory_bank.class_start + engine.memory_bank.num_local
    np.testing.assert_array_equal(copied, shards["weight"][start:stop])


@ONE_RANK
def test_a_class_map_is_for_the_checkpoint_that_resume_names(tmp_path):
    """Checkpoints in the output folder, which a restart finds, already have mapped classes."""
    folder, path, class_map = CheckpointFolder(str(tmp_path / "checkpoints"), kept=9), tmp_path / "map.txt", [-1, 2, 0]
    saved = checkpoint_cases.newest(Training().fit(1, folder, every=100), folder)
    path.write_text("".join(f"{number}\n" for number in class_map))

    def found(resume):
        changes = {"resume": resume, "class_map": str(path), "num_classes": 3, "new_centers": "random"}
        settings = edict(**changes, pretrained="", checkpoint_options="kept=9", gradient_acc=1)
        return find_checkpoint(settings, str(tmp_path), default_collectives, lambda path, gradient_acc: None).checkpoint

    assert found("auto").class_map is None
    assert found(saved.path).class_map.tolist() == class_map
