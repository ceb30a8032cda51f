"""The intervals of checkpoints that the user does not set."""

from types import SimpleNamespace

import pytest

from partial_fc.checkpoint import CheckpointFolder
from partial_fc.training.checkpointing import CallBackCheckpoint, suitable_interval
from partial_fc.training.loop import LoopState

CLASSES, WIDTHS = 10_000_000, {"weight": 512, "weight_mom": 512}
BYTES = CLASSES * 1024 * 4


@pytest.mark.parametrize("ranks, minutes", [(1, 34.1), (2, 17.1), (8, 10)])
def test_checkpoints_of_gpus_take_two_percent_of_the_time_at_most(ranks, minutes):
    updates, found = suitable_interval(True, BYTES // ranks)
    assert updates == 0 and found == pytest.approx(minutes, abs=0.1)
    assert BYTES / ranks / 1e9 <= 0.0201 * 60 * found


@pytest.mark.parametrize(
    "on_gpu, asked, expected",
    [
        (False, (-1, 0), (2000, 0)),
        (False, (-1, 5), (2000, 5)),
        (True, (-1, 5), (0, 5)),
        (True, (500, 0), (500, 0)),
        (True, (0, 0), (0, 0)),
        (True, (-1, 0), (0, pytest.approx(BYTES / 1e9 / 1.2))),
    ],
)
def test_set_intervals_win_over_the_chosen_ones(on_gpu, asked, expected, tmp_path):
    bank = SimpleNamespace(nbytes=4 * CLASSES * sum(WIDTHS.values()))
    engine, folder = SimpleNamespace(on_gpu=on_gpu, banks={"": bank}), CheckpointFolder(str(tmp_path), 1)
    callback = CallBackCheckpoint(engine, folder, asked[0], loop=LoopState(), minutes=asked[1])
    assert (callback.frequent, callback.minutes) == expected
