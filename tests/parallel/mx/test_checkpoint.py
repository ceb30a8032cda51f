"""Checkpoints of an MXNet training: their content, and resuming from them bit for bit."""

import os
from functools import partial
from pathlib import Path

import horovod.mxnet as hvd
import mxnet as mx
import numpy as np
import pytest
from layer import E, build_bank

import checkpoint_cases
from checkpoint_cases import BATCH, CLASSES, EPOCH, RATES_CHANGE, SHAPE, STEPS, SmallTraining, equal
from partial_fc.checkpoint import CheckpointFolder
from partial_fc.distributed.errors import JobError, Preempted
from partial_fc_mxnet import (
    DummyIter,
    MarginLoss,
    MemoryBankSGDOptimizer,
    SampleDistributeModule,
    SavedTraining,
    get_scheduler,
)
from partial_fc_mxnet.collectives import default_collectives


def symbol(embedding_size, dropout=0.3):
    flat = mx.sym.Dropout(mx.sym.flatten(mx.sym.Variable("data")) / 255, p=dropout)
    hidden = mx.sym.BatchNorm(mx.sym.FullyConnected(flat, num_hidden=6, name="hidden"), name="bn")
    return mx.sym.FullyConnected(hidden, num_hidden=embedding_size, name="fc1")


class Training(SmallTraining):
    """See SmallTraining."""

    def __init__(self, seed=0, batch=BATCH, classes=CLASSES, folder=None, momentum=0.9, width=E):
        bank = build_bank(classes, 0.5, "", width, folder=folder, seed=seed)
        backbone, centers = get_scheduler([RATES_CHANGE], 0.1, 0.1, warmup_steps=3)
        sgd = MemoryBankSGDOptimizer(centers, 1 / (batch * hvd.size()))
        self.engine = SampleDistributeModule(symbol(width), MarginLoss((1.0, 0.3, 0.1), 8.0, width), bank, sgd)
        self.params = dict(learning_rate=0.1, lr_scheduler=backbone, momentum=momentum, rescale_grad=1 / batch)
        self.data = DummyIter(batch, SHAPE, EPOCH, classes, seed, hvd.rank())
        self.loop, self.losses = self.engine.loop, []

    def prepare(self):
        if not self.engine.num_classes:
            mx.random.seed(7)
            self.engine.bind(self.data.provide_data)
            self.engine.init_params(mx.init.Xavier())

    def run(self, callbacks, steps, saved):
        self.engine.fit(self.data, self.params, callbacks, None, max_update=steps, saved=saved)


@pytest.fixture
def folder(folder):
    return CheckpointFolder(folder, kept=9)


@pytest.mark.parametrize("in_files, momentum", [(False, 0.9), (True, 0.9), (False, 0.0)])
def test_a_resumed_training_equals_an_uninterrupted_one_bit_for_bit(folder, in_files, momentum):
    make = partial(Training, folder=folder.path if in_files else None, momentum=momentum)
    checkpoint_cases.a_resumed_training_equals_an_uninterrupted_one(make, folder)


def test_a_save_in_the_background_saves_the_state_of_its_step(folder):
    checkpoint_cases.a_save_in_the_background_saves_the_state_of_its_step(Training, folder)


def test_checkpoints_by_time_follow_the_clock_of_rank_zero(folder, monkeypatch):
    checkpoint_cases.checkpoints_by_time_follow_the_clock_of_rank_zero(Training, folder, monkeypatch)


def test_without_memory_for_a_copy_the_same_is_saved(folder, monkeypatch):
    monkeypatch.setattr("partial_fc.training.checkpointing.free_memory", lambda: 0 if hvd.rank() == 0 else 1 << 40)
    Training().fit(4, folder, every=2)
    again = Training().fit(STEPS, saved=SavedTraining.newest(folder, default_collectives))
    equal(again.everything(), Training().fit(STEPS).everything())


def test_a_stop_request_to_one_rank_stops_all_at_the_same_update(folder, monkeypatch):
    training = Training()

    def ask(param):
        if param.num_update == 3 and hvd.rank() == hvd.size() - 1:
            monkeypatch.setattr(default_collectives, "stop_requested", lambda: True)

    with pytest.raises(Preempted) as stopped:
        training.fit(STEPS, folder, every=100, callbacks=[ask])
    # The request comes during update 3; all ranks receive it with the labels of update 5 at the latest.
    assert stopped.value.num_update == training.engine.num_update in (4, 5)
    assert len(set(default_collectives.gather_object("stopped_at", training.engine.num_update))) == 1
    monkeypatch.undo()
    again = Training().fit(STEPS, saved=SavedTraining.newest(folder, default_collectives))
    equal(again.everything(), Training().fit(STEPS).everything())


def test_nonfinite_numbers_are_not_saved(folder):
    training = Training()

    def spoil(param):
        if param.num_update == 4 and hvd.rank() == hvd.size() - 1:
            training.engine.memory_bank.weight_mom[0, 0] = np.inf

    with pytest.raises(JobError, match="momentum.*of update 4 is not saved"):
        training.fit(4, folder, every=2)
        training.engine.memory_bank.weight_mom[:] = 0
        spoil(training.engine.batch_end_param(None, 0, 4))
        training.checkpoint._saved_at = 0
        training.checkpoint.save(4)
    assert [update for update, _ in folder.complete()] == [4, 2]


def test_a_checkpoint_of_another_training_is_refused(folder):
    cases = [
        ({"classes": CLASSES + 1}, f"{CLASSES} classes"),
        ({"width": E + 1}, f"set embedding_size={E}"),
        ({"momentum": 0.0}, "set momentum"),
    ]
    checkpoint_cases.a_checkpoint_of_another_training_is_refused(Training, folder, cases)
    # Dummy images do not depend on the seed.
    Training(seed=1).fit(3, saved=SavedTraining.newest(folder, default_collectives))


def test_mapped_classes_are_restored_and_new_ones_keep_their_initial_centers(folder):
    checkpoint_cases.mapped_classes_are_restored_and_new_ones_keep_their_initial_centers(Training, folder)


def test_a_damaged_file_is_named_on_every_rank_and_the_older_checkpoint_used(folder):
    Training().fit(4, folder, every=2)
    (_, newest), (older, older_path) = folder.complete()
    damaged = Path(newest, "centers-00000.npy")
    default_collectives.on_rank_zero("damage", lambda: damaged.write_bytes(damaged.read_bytes()[:-3] + b"bad"))
    with pytest.raises(JobError, match="centers-00000.npy.*SHA-256"):
        SavedTraining.open(newest, default_collectives)
    assert SavedTraining.newest(folder, default_collectives).manifest.num_update == older
    default_collectives.barrier("opened")
    default_collectives.on_rank_zero("rename", os.rename, newest, older_path + "9")
    with pytest.raises(JobError, match="contains update 4"):
        SavedTraining.open(older_path + "9", default_collectives)
    default_collectives.on_rank_zero("remove", os.remove, os.path.join(older_path, "backbone.npz"))
    # Not from update 0, which would discard checkpoints that the user may be able to repair.
    with pytest.raises(JobError, match=f"all checkpoints in {folder.path} are damaged"):
        SavedTraining.newest(folder, default_collectives)
