"""The loop over epochs and batches, and where a resumed training continues."""

from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest

from partial_fc.training.loop import LoopState, iterate_epochs, updates
from partial_fc.training.saved_training import SavedTraining
from partial_fc.training.saving import SaveCallback


class Data:
    """An iterator over the numbers 0, 1, ... that starts at ``position``."""

    def __init__(self, length, position=0):
        self.length, self.position, self.resets = length, position, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.position == self.length:
            raise StopIteration
        self.position += 1
        return self.position - 1

    def reset(self):
        self.position, self.resets = 0, self.resets + 1

    def state(self):
        return {"position": self.position}


class Steps:
    """An engine that only counts."""

    num_update = 0

    def step(self, batch):
        self.num_update += 1
        return batch

    def wait_for_update(self):
        pass


@pytest.mark.parametrize(
    "data, first, expected",
    [(Data(2), 0, [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]), (Data(3, position=2), 4, [(4, 2), (5, 0), (5, 1)])],
)
def test_epochs_follow_each_other_from_the_current_position(data, first, expected):
    assert list(islice(iterate_epochs(data, first=first), len(expected))) == expected


def test_one_epoch_ends_with_a_reset():
    data = Data(2)
    assert list(iterate_epochs(data, endless=False)) == [(0, 0), (0, 1)]
    assert (data.resets, data.position) == (1, 0)


@pytest.mark.parametrize("endless", [True, False])
def test_an_epoch_without_batches_is_an_error(endless):
    with pytest.raises(ValueError, match="no batch in epoch 7, expected at least one per rank"):
        next(iterate_epochs(Data(0), first=7, endless=endless))


def test_the_data_state_does_not_count_the_batch_that_is_read_ahead():
    data, loop, seen = Data(3), LoopState(), []
    for update in updates(Steps(), data, loop, max_update=4):
        seen.append((update.loss, loop.data_state["position"], data.position))
    assert seen == [(0, 1, 2), (1, 2, 3), (2, 3, 1), (0, 1, 1)]
    assert loop.num_epoch == 1


def test_a_resumed_loop_continues_its_epoch_and_waiting_time(monkeypatch):
    loop, ticks = LoopState(num_epoch=3, waited_for_data=0.5), iter(range(100))
    monkeypatch.setattr("time.perf_counter", lambda: next(ticks))
    assert [update.num_epoch for update in updates(Steps(), Data(3, position=2), loop, max_update=4)] == [3, 4, 4, 4]
    assert loop.waited_for_data == 4.5


def test_a_save_is_done_once_for_each_update():
    saved, tried = [], []
    save = SaveCallback(2, saved.append, lambda: tried.append(len(saved)))
    for num_update in (1, 2, 3, 4):
        save(SimpleNamespace(num_update=num_update))
    save.save(4)
    save.save(5)
    assert (saved, tried) == ([2, 4, 5], [0])


@pytest.mark.parametrize(
    "state, class_map, position",
    [
        ({"data": {"epoch": 3, "images": 500}}, None, (3, 500)),
        ({"data": {"epoch": 3, "images": 500}}, np.arange(5), (4, 0)),  # other data start with the next epoch
        ({}, None, (0, 0)),
    ],
)
def test_the_position_in_the_data(state, class_map, position):
    manifest = SimpleNamespace(state=state, origin={})
    assert SavedTraining("step-0000000035", manifest, class_map).position == position
