import numpy as np
import pytest

from checkpoint_files import E, centers, write_checkpoint
from open_files import few_open_files
from partial_fc.checkpoint import SavedClasses, read_manifest, write_file
from partial_fc.checkpoint.mxnet_params import array_file_chunks
from partial_fc.layer.sharding import shard_of
from partial_fc_tools.checkpoints.check import check


def of(path):
    return SavedClasses.of_checkpoint(path, read_manifest(path))


def same(saved, **fields):
    assert saved.widths == {name: rows.shape[1] for name, rows in fields.items()}
    for name, rows in fields.items():
        np.testing.assert_array_equal(saved.rows(name, np.arange(len(rows))), rows)


@pytest.mark.parametrize("ranks", [1, 2, 3, 9])
def test_a_checkpoint_of_any_number_of_ranks(ranks, tmp_path):
    saved, (weight, momentum) = of(write_checkpoint(tmp_path, 5, classes=7, ranks=ranks)), centers(7)
    assert saved.num_classes == 7
    same(saved, weight=weight, weight_mom=momentum)
    for classes in ([6, 0, 3, 3, 1], [4], []):
        asked = np.array(classes, np.int64)
        np.testing.assert_array_equal(saved.rows("weight", asked), weight[asked])
        np.testing.assert_array_equal(saved.rows("weight_mom", asked), momentum[asked])
    saved.rows("weight", np.arange(2))[:] = 0  # the caller's own
    same(saved, weight=weight, weight_mom=momentum)
    same(saved.without_states(), weight=weight)


def test_centers_of_more_ranks_than_files_may_be_open(tmp_path, monkeypatch, capsys):
    """512 ranks have more files than the usual limit, 1,024."""
    monkeypatch.setattr("partial_fc.checkpoint.class_centers.HELD_OPEN", 5)
    path, fields = write_checkpoint(tmp_path / "own", 5, classes=70, ranks=30), centers(70)
    for rank in range(30):
        start, stop = shard_of(70, rank, 30)
        for kind, field in zip(("centers", "centers_mom"), fields):
            bank_file(tmp_path, rank, np.split(field[start:stop], [1]), kind)
    with few_open_files(20):
        assert check(path) == 0, capsys.readouterr().out
        for opened in (lambda: of(path), lambda: SavedClasses.of_original(str(tmp_path))):
            saved = opened()
            for classes in (np.arange(70), np.random.default_rng(0).permutation(70), np.array([69, 0, 69])):
                for name, rows in zip(("weight", "weight_mom"), fields):
                    np.testing.assert_array_equal(saved.rows(name, classes), rows[classes])


@pytest.mark.parametrize("ranks", [1, 3, 9])
def test_states_of_another_optimizer(ranks, tmp_path):
    states = {"weight_exp_avg": centers(7, seed=1)[0], "weight_updates": np.arange(7, dtype=np.float32)[:, None]}
    saved = of(write_checkpoint(tmp_path, 5, classes=7, ranks=ranks, states=states))
    same(saved, weight=centers(7)[0], **states)
    widths = {"weight": E, "weight_exp_avg": E, "weight_updates": 1}
    saved.require_widths(widths)
    saved.without_states().require_widths({"weight": E, "weight_mom": E})
    for own, message in (
        ({"weight": E + 1}, f"of embedding size {E}, expected {E + 1}: set embedding_size={E}"),
        ({"weight": E, "weight_mom": E}, "weight_exp_avg, weight_updates .* has weight_mom: set center_optimizer"),
        ({"weight": E}, "has none: set center_optimizer"),
        ({**widths, "weight_updates": E}, "set center_optimizer"),
    ):
        with pytest.raises(ValueError, match=message):
            saved.require_widths(own)


def test_a_class_has_all_its_sub_centers_in_a_row(tmp_path):
    rows = np.random.default_rng(0).standard_normal((7, 2 * E)).astype(np.float32)
    path = write_checkpoint(tmp_path, 5, weight=rows, states={"weight_mom": -rows})
    saved = of(path)
    same(saved, weight=rows, weight_mom=-rows)
    assert (saved.embedding_size, saved.sub_centers) == (E, 2)
    saved.require_widths({"weight": 2 * E, "weight_mom": 2 * E}, sub_centers=2)
    for each in (saved, saved.without_states()):
        with pytest.raises(ValueError, match="2 centers each, .* have 1: set layer_options=sub_centers=2"):
            each.require_widths({"weight": E, "weight_mom": E})
        with pytest.raises(ValueError, match=f"set embedding_size={E}"):
            each.require_widths({"weight": 2 * E, "weight_mom": 2 * E})


@pytest.mark.parametrize("classes", [[-1], [0, 7]])
def test_classes_out_of_range(classes, tmp_path):
    saved = of(write_checkpoint(tmp_path, 5))
    with pytest.raises(ValueError, match="but 7 were saved"):
        saved.rows("weight", np.array(classes))


def bank_file(folder, rank, rows, kind="centers"):
    write_file(str(folder / f"{rank}_{kind}.param"), array_file_chunks(rows))


@pytest.mark.parametrize("momentum", [False, True])
@pytest.mark.parametrize("ranks", [1, 3, 11])
def test_files_of_memory_banks(ranks, momentum, tmp_path):
    """As MemoryBank.save writes them, some ranks' in two pieces."""
    weight, weight_mom = centers(13)
    for rank in range(ranks):
        start, stop = shard_of(13, rank, ranks)
        for kind, field in (("centers", weight), ("centers_mom", weight_mom))[: 1 + momentum]:
            bank_file(tmp_path, rank, np.split(field[start:stop], [1] if rank % 2 else []), kind)
    saved = SavedClasses.of_original(str(tmp_path))
    assert saved.num_classes == 13
    same(saved, weight=weight, **({"weight_mom": weight_mom} if momentum else {}))


def test_files_of_the_original_trainer(tmp_path):
    """ceil(C / R) rows on every rank: of 13 classes on 3 ranks the last two rows are of no class."""
    weight = np.concatenate([centers(13)[0], np.full((2, E), 7, np.float32)])
    for rank in range(3):
        bank_file(tmp_path, rank, [weight[5 * rank : 5 * rank + 5]])
    saved = SavedClasses.of_original(str(tmp_path))
    np.testing.assert_array_equal(saved.rows("weight", np.arange(13)), weight[:13])


def rows(number, width=E):
    return [np.ones((number, width), np.float32)]


@pytest.mark.parametrize(
    "files, message",
    [
        ({}, "has no 0_centers.param"),
        ({"0_centers": rows(4), "2_centers": rows(4)}, "cannot read .*/1_centers.param: No such file"),
        ({"1_centers": rows(4)}, "cannot read .*/0_centers.param: No such file"),
        ({"0_centers": rows(4), "1_centers": rows(4), "0_centers_mom": rows(4)}, r"\[4, 4\] rows, .*momentum \[4\]"),
        ({"0_centers": rows(4), "0_centers_mom": rows(3)}, r"\[4\] rows, .*momentum \[3\]"),
        ({"0_centers": rows(4), "1_centers": rows(4, E + 1)}, "different embedding sizes"),
        ({"0_centers": rows(4), "0_centers_mom": rows(4, E + 1)}, "different embedding sizes"),
        # Two ranks have overwritten two files of an earlier training on four.
        ({f"{r}_centers": rows(n) for r, n in enumerate((7, 6, 3, 3))}, r"\[7, 6, 3, 3\] rows, .*not all of one train"),
        ({"0_centers": rows(6), "1_centers": rows(7)}, r"\[6, 7\] rows, .*not all of one training"),
        ({"0_centers": [np.ones(4, np.float32)]}, r"0_centers.param holds an array of shape \(4,\), expected"),
    ],
)
def test_files_of_different_trainings_are_refused(files, message, tmp_path):
    for name, arrays in files.items():
        write_file(str(tmp_path / f"{name}.param"), array_file_chunks(arrays))
    with pytest.raises((OSError, ValueError), match=message):
        SavedClasses.of_original(str(tmp_path))


def test_blocks_have_the_saved_rows_and_leave_the_new_ones(tmp_path, monkeypatch):
    monkeypatch.setattr("partial_fc.checkpoint.class_centers.ROWS", 3)
    weight, _ = centers(7)
    classes, bank = np.array([6, -1, 0, -1, -1, -1, 2, 3, 5, 1, -1]), np.full((11, E), 9, np.float32)
    blocks = of(write_checkpoint(tmp_path, 5, ranks=2)).blocks("weight", classes, lambda part: bank[part].copy())
    rows_by_start = dict(blocks)
    assert {first: len(rows) for first, rows in rows_by_start.items()} == {0: 3, 6: 3, 9: 2}  # rows 3 to 5 are new
    for first, rows in rows_by_start.items():
        part = classes[first : first + 3]
        np.testing.assert_array_equal(rows, np.where(part[:, None] < 0, 9, weight[part]))


def test_a_center_that_is_not_finite_is_named(tmp_path):
    pieces = rows(4)
    pieces[0][2, E - 1] = np.nan
    bank_file(tmp_path, 0, pieces)
    saved = SavedClasses.of_original(str(tmp_path))
    assert saved.rows("weight", np.array([3, 1])).shape == (2, E)
    with pytest.raises(ValueError, match="weight of class 2 .* not finite"):
        saved.rows("weight", np.array([3, 2]))


def test_a_damaged_file_of_a_memory_bank_is_named(tmp_path):
    bank_file(tmp_path, 0, rows(4))
    bank_file(tmp_path, 1, rows(4))
    with open(tmp_path / "1_centers.param", "r+b") as file:
        file.truncate(60)
    with pytest.raises(ValueError, match="cannot read .*/1_centers.param: the file is truncated"):
        SavedClasses.of_original(str(tmp_path))
