"""Test cases for checkpoints, shared by both trainers: ``make(**arguments)`` builds a SmallTraining."""

from dataclasses import replace

import numpy as np
import pytest

from partial_fc.checkpoint import CheckpointFolder, SavedClasses, read_manifest
from partial_fc.distributed.errors import JobError
from partial_fc.training.checkpointing import CallBackCheckpoint, training_state
from partial_fc.training.loop import LoopState, seed_step
from partial_fc.training.saved_training import SavedTraining
from partial_fc.training.schedules import value_in_epoch

# An epoch has three batches; both rates change after update RATES_CHANGE, the sample ratio changes after each epoch.
CLASSES, BATCH, SHAPE, EPOCH, STEPS, RATES_CHANGE = 13, 4, (3, 4, 4), 3, 8, 4
RATIOS = 0.5, 0.7, 0.0


class SmallTraining:
    """A training of STEPS updates; `fit` starts or continues it, or resumes it from a checkpoint.

    Attributes:
        engine, data: see partial_fc.training.engine.
        loop: see LoopState.
        losses: one per update.
    """

    loop: LoopState

    def fit(self, steps, folder=None, every=0, saved=None, callbacks=(), minutes=0.0):
        self.prepare()

        def prepare_step(num_update):  # as Trainer does
            for bank in self.engine.banks.values():
                bank.set_sample_ratio(value_in_epoch(RATIOS, num_update // EPOCH))
            seed_step(self.engine.seed_generators, 0, self.engine.collectives.rank, num_update)

        prepare_step(saved.manifest.num_update if saved else self.engine.num_update)
        calls = [lambda param: self.losses.append(param.loss_value)]
        if folder:
            self.checkpoint = CallBackCheckpoint(
                self.engine, folder, every, lambda: {"losses": self.losses}, loop=self.loop, minutes=minutes
            )
            calls.append(self.checkpoint)
        self.run([*calls, *callbacks, lambda param: prepare_step(param.num_update)], steps, saved)
        if folder:
            self.checkpoint.save(steps)
        return self

    def prepare(self):
        """Creates the parameters if there are none yet."""

    def run(self, callbacks, steps, saved):
        """Trains until `steps` updates are done."""
        raise NotImplementedError

    def rows(self, field, head=""):
        """Returns this rank's centers or one of their states, (L, width); ``field`` is a key of the bank's widths."""
        return np.concatenate(self.engine.banks[head].host_rows(field, copied=True))

    def rows_of_all(self, field, head=""):
        return np.concatenate(self.engine.collectives.gather_object(field, self.rows(field, head)))

    def everything(self):
        """Returns all arrays of this rank by name."""
        arrays = {**self.engine.parameters(), **self.engine.statistics()}
        for head, bank in self.engine.banks.items():
            arrays |= {f"{head}{field}": self.rows(field, head) for field in bank.widths}
        return arrays


def equal(first, second):
    assert first.keys() == second.keys()
    for name, array in first.items():
        np.testing.assert_array_equal(second[name], array, err_msg=name)


def newest(training, folder):
    return SavedTraining.newest(folder, training.engine.collectives)


def a_resumed_training_equals_an_uninterrupted_one(make, folder):
    whole = make().fit(STEPS, folder, every=1)
    saved_at = dict(folder.complete())
    # At the end of an epoch, where the sample ratio changes; within an epoch, after the rates changed; at the end.
    for stop in (EPOCH, RATES_CHANGE + 1, 2 * EPOCH, STEPS - 1):
        again = make()
        saved = SavedTraining.open(saved_at[stop], again.engine.collectives)
        assert saved.manifest.num_update == stop
        # So that only the checkpoint's state can make it draw the same negatives.
        for bank in again.engine.banks.values():
            bank.sampler.restart(99)
        again.fit(STEPS, saved=saved)
        assert again.losses == whole.losses[stop:]
        equal(again.everything(), whole.everything())
        assert again.engine.num_update == STEPS
        assert training_state(again.engine, again.loop) == training_state(whole.engine, whole.loop)
    # Saved, resumed, saved and resumed again.
    last, path = RATES_CHANGE, saved_at[EPOCH - 1]
    other = CheckpointFolder(f"{folder.path}-again", kept=9)
    for stop in (last, STEPS):
        again = make()
        again.fit(stop, other, every=1, saved=SavedTraining.open(path, again.engine.collectives))
        again.engine.collectives.barrier("saved")
        path = dict(other.complete())[stop]
    assert again.losses == whole.losses[last:]
    equal(again.everything(), whole.everything())
    assert [update for update, _ in other.complete()] == [*range(STEPS, EPOCH - 1, -1)]


def a_save_in_the_background_saves_the_state_of_its_step(make, folder):
    saving = make().fit(STEPS, folder, every=2)
    assert [update for update, _ in folder.complete()] == [8, 6, 4, 2]
    equal(saving.everything(), make().fit(STEPS).everything())
    engine = saving.engine
    bank, rank = engine.memory_bank, engine.collectives.rank
    local_classes = np.arange(bank.class_start, bank.class_start + bank.num_local)
    for update, path in folder.complete():
        at, manifest = make().fit(update), read_manifest(path)
        if rank == 0:
            assert manifest.state["losses"] == at.losses
        classes = SavedClasses.of_checkpoint(path, manifest)
        assert classes.widths == bank.widths
        for field in bank.widths:
            np.testing.assert_array_equal(classes.rows(field, local_classes), at.rows(field))
        with np.load(f"{path}/backbone.npz") as backbone, np.load(f"{path}/rank-{rank:05}.npz") as statistics:
            equal(dict(backbone), at.engine.parameters())
            equal(dict(statistics), at.engine.statistics())


def checkpoints_by_time_follow_the_clock_of_rank_zero(make, folder, monkeypatch):
    training = make()
    seconds = 25 + 100 * training.engine.collectives.rank  # per update
    clock = "partial_fc.training.checkpointing.monotonic"
    monkeypatch.setattr(clock, lambda: seconds * training.engine.num_update)
    training.fit(STEPS, folder, every=5, minutes=1.0)
    # In the step after 75 s have passed; after five updates; at the end.
    assert [update for update, _ in folder.complete()] == [8, 5, 4]


def a_checkpoint_of_another_training_is_refused(make, folder, cases):
    saved = newest(make().fit(2, folder, every=100), folder)
    for arguments, message in cases:
        with pytest.raises(JobError, match=message) as error:
            make(**arguments).fit(3, saved=saved)
        assert saved.path in str(error.value)


def mapped_classes_are_restored_and_new_ones_keep_their_initial_centers(make, folder):
    first = make().fit(3, folder, every=100)
    class_map = np.array([5, -1, 12, 0, -1, -1, 7, 1, 2, 3, 4, 6, 8, 9, 10, 11, -1])
    saved, kept = replace(newest(first, folder), class_map=class_map), class_map >= 0
    second = make(classes=len(kept))
    fresh = second.rows_of_all("weight")
    second.fit(3, saved=saved)
    for field in second.engine.memory_bank.widths:
        rows = second.rows_of_all(field)
        np.testing.assert_array_equal(rows[kept], first.rows_of_all(field)[class_map[kept]])
        np.testing.assert_array_equal(rows[~kept], fresh[~kept] if field == "weight" else 0)
    second.fit(5)
    assert second.engine.num_update == 5
