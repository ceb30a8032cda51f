"""Checkpoints of a training: their content, and resuming from them bit for bit."""

import os

import horovod.mxnet as hvd
import mxnet as mx
import numpy as np
import pytest
from layer import E, all_ranks

from partial_fc.checkpoint import CheckpointFolder, SavedClasses, read_manifest
from partial_fc.layer.sharding import num_sampled, shard_of
from partial_fc.training.step_seed import StepSeed
from partial_fc_mxnet import (
    CallBackCheckpoint,
    DummyIter,
    MarginLoss,
    MemoryBank,
    MemoryBankSGDOptimizer,
    SampleDistributeModule,
    SavedTraining,
    collectives,
    get_scheduler,
)

CLASSES, BATCH, SHAPE, STEPS = 13, 4, (3, 4, 4), 8


def symbol(embedding_size, dropout=0.3):
    flat = mx.sym.Dropout(mx.sym.flatten(mx.sym.Variable("data")) / 255, p=dropout)
    hidden = mx.sym.BatchNorm(mx.sym.FullyConnected(flat, num_hidden=6, name="hidden"), name="bn")
    return mx.sym.FullyConnected(hidden, num_hidden=embedding_size, name="fc1")


class Training:
    """A small training; `fit` starts or continues it, or resumes it from a checkpoint."""

    def __init__(self, seed=0, batch=BATCH, classes=CLASSES, folder=None, momentum=0.9, width=E):
        rank, size = hvd.rank(), hvd.size()
        shard = shard_of(classes, rank, size)
        sampled = num_sampled(shard.size, 0.5)
        self.bank = MemoryBank(
            sampled, shard.size, rank, hvd.local_rank(), width, "", folder=folder, class_start=shard.start, seed=seed
        )
        backbone, centers = get_scheduler([5], 0.1, 0.1, warmup_steps=3)
        sgd = MemoryBankSGDOptimizer(centers, 1 / (batch * size))
        self.module = SampleDistributeModule(symbol(width), MarginLoss((1.0, 0.3, 0.1), 8.0, width), self.bank, sgd)
        self.params = dict(learning_rate=0.1, lr_scheduler=backbone, momentum=momentum, rescale_grad=1 / batch)
        self.data = DummyIter(batch, SHAPE, 3, classes, seed, rank, size)
        self.losses = []

    def fit(self, steps, folder=None, every=0, saved=None, callbacks=(), **arguments):
        if not self.module.num_classes:
            mx.random.seed(7)
            self.module.bind(self.data.provide_data)
            self.module.init_params(mx.init.Xavier())
        seed = StepSeed(mx.random.seed, 0, hvd.rank())
        seed.after(saved.manifest.num_update if saved else self.module.num_update)
        calls = [seed, lambda param: self.losses.append(float(param.loss.asscalar()))]
        if folder:
            self.checkpoint = CallBackCheckpoint(self.module, folder, every, **arguments)
            calls.append(self.checkpoint)
        calls += callbacks
        self.module.fit(self.data, self.params, calls, None, max_update=steps, saved=saved)
        if folder:
            self.checkpoint.save(steps)
        return self

    def everything(self):
        """Returns all arrays of this rank by name."""
        arg_params, aux_params = self.module.get_export_params()
        arrays = {**arg_params, **aux_params, "weight": self.bank.weight, "mom": self.bank.weight_mom}
        states = self.module._module._updater.states
        arrays.update({f"state {index}": state for index, state in states.items() if state is not None})
        return {name: array.asnumpy() for name, array in arrays.items()}


@pytest.fixture
def folder(tmp_path):
    """One folder for all ranks, although each has its own tmp_path."""
    return CheckpointFolder(collectives.broadcast("folder", str(tmp_path)), kept=9)


def equal(first, second):
    assert first.keys() == second.keys()
    for name, array in first.items():
        np.testing.assert_array_equal(second[name], array, err_msg=name)


@pytest.mark.parametrize("in_files, momentum", [(False, 0.9), (True, 0.9), (False, 0.0)])
def test_a_resumed_training_equals_an_uninterrupted_one_bit_for_bit(folder, in_files, momentum):
    how = dict(folder=folder.path if in_files else None, momentum=momentum)
    whole = Training(**how).fit(STEPS)
    for stop in (3, 5):  # within an epoch, and after the rates have changed
        Training(**how).fit(stop, folder, every=100)
        saved = SavedTraining.open(folder.complete()[0][1], collectives.OF_PROCESS)
        assert saved.manifest.num_update == stop
        # Another seed would start from other weights, draw other negatives and read other labels.
        again = Training(**how)
        again.bank.sampler.restart(99)
        again.fit(STEPS, saved=saved)
        assert again.losses == whole.losses[stop:]
        equal(again.everything(), whole.everything())
        assert (again.module.num_update, again.module.num_epoch) == (STEPS, whole.module.num_epoch)


def test_a_save_in_the_background_saves_the_state_of_its_step(folder):
    saving = Training().fit(STEPS, folder, every=2)
    assert [update for update, _ in folder.complete()] == [8, 6, 4, 2]
    equal(saving.everything(), Training().fit(STEPS).everything())
    for update, path in folder.complete():
        at = Training().fit(update).everything()
        classes = SavedClasses.of_checkpoint(path, read_manifest(path))
        own_classes = np.arange(saving.bank.class_start, saving.bank.class_start + saving.bank.num_local)
        np.testing.assert_array_equal(classes.rows("weight", own_classes), at["weight"])
        np.testing.assert_array_equal(classes.rows("weight_mom", own_classes), at["mom"])
        with np.load(f"{path}/backbone.npz") as backbone, np.load(f"{path}/rank-{hvd.rank():05}.npz") as own:
            np.testing.assert_array_equal(backbone["arg:fc1_weight"], at["fc1_weight"])
            np.testing.assert_array_equal(own["aux:bn_moving_mean"], at["bn_moving_mean"])


def test_without_memory_for_a_copy_the_same_is_saved(folder, monkeypatch):
    monkeypatch.setattr("partial_fc.training.checkpointing.free_memory", lambda: 0 if hvd.rank() == 0 else 1 << 40)
    Training().fit(4, folder, every=2)
    again = Training().fit(STEPS, saved=SavedTraining.newest(folder, collectives.OF_PROCESS))
    equal(again.everything(), Training().fit(STEPS).everything())


def test_a_stop_request_to_one_rank_stops_all_at_the_same_update(folder, monkeypatch):
    training = Training()

    def ask(param):
        if param.num_update == 3 and hvd.rank() == hvd.size() - 1:
            monkeypatch.setattr(collectives.OF_PROCESS, "stop_requested", lambda: True)

    with pytest.raises(collectives.Preempted) as stopped:
        training.fit(STEPS, folder, every=100, callbacks=[ask])
    # Requested during update 3, sent to all ranks with the labels of update 5 at the latest.
    assert stopped.value.num_update == training.module.num_update in (4, 5)
    assert len(set(collectives.gather("stopped_at", training.module.num_update))) == 1
    monkeypatch.undo()
    again = Training().fit(STEPS, saved=SavedTraining.newest(folder, collectives.OF_PROCESS))
    equal(again.everything(), Training().fit(STEPS).everything())


def test_nonfinite_numbers_are_not_saved(folder):
    training = Training()

    def spoil(param):
        if param.num_update == 4 and hvd.rank() == hvd.size() - 1:
            training.bank.weight_mom[0, 0] = np.inf

    with pytest.raises(collectives.JobError, match="momentum.*of update 4 is not saved"):
        training.fit(4, folder, every=2, callbacks=[])
        training.bank.weight_mom[:] = 0
        spoil(training.module.batch_end_param(None, 0, 4))
        training.checkpoint._saved_at = 0
        training.checkpoint.save(4)
    assert [update for update, _ in folder.complete()] == [4, 2]


def test_a_checkpoint_of_another_training_is_refused(folder):
    Training().fit(2, folder, every=100)
    saved = SavedTraining.newest(folder, collectives.OF_PROCESS)
    cases = [
        (dict(classes=CLASSES + 1), f"it holds {CLASSES} classes, this training has {CLASSES + 1}"),
        (dict(width=E + 1), f"its embedding size is {E}, this training's is {E + 1}: set embedding_size={E}"),
        (dict(momentum=0.0), "set momentum"),
        (dict(seed=1), None),  # accepted: dummy images do not depend on the seed
    ]
    for arguments, message in cases:
        training = Training(**arguments)
        if message is None:
            training.fit(3, saved=saved)
            continue
        with pytest.raises(collectives.JobError, match=message) as error:
            training.fit(3, saved=saved)
        assert saved.path in str(error.value)


def test_mapped_classes_are_restored_and_new_ones_keep_their_initial_centers(folder):
    first = Training().fit(3, folder, every=100)
    weight, mom = (all_ranks(array.asnumpy(), "all") for array in (first.bank.weight, first.bank.weight_mom))
    saved = SavedTraining.newest(folder, collectives.OF_PROCESS)
    saved.class_map = np.array([5, -1, 12, 0, -1, -1, 7, 1, 2, 3, 4, 6, 8, 9, 10, 11, -1])
    second = Training(classes=17)
    fresh = all_ranks(second.bank.weight.asnumpy(), "fresh")
    second.fit(3, saved=saved)
    kept = saved.class_map >= 0
    found = all_ranks(second.bank.weight.asnumpy(), "found")
    np.testing.assert_array_equal(found[kept], weight[saved.class_map[kept]])
    np.testing.assert_array_equal(found[~kept], fresh[~kept])
    moved = all_ranks(second.bank.weight_mom.asnumpy(), "moved")
    np.testing.assert_array_equal(moved[kept], mom[saved.class_map[kept]])
    assert not moved[~kept].any()
    second.fit(5)
    assert second.module.num_update == 5


@pytest.mark.parametrize(
    "batch, epoch, images", [(2, 0, 10), (6, 1, 6)]
)  # after 8 of 12 images, 6 more do not fit in the epoch
def test_another_batch_size_resumes_at_the_same_image(folder, batch, epoch, images):
    Training(batch=4).fit(2, folder, every=100)
    training = Training(batch=batch)
    training.data = DummyIter(batch, SHAPE, 12 // batch, CLASSES, 0, hvd.rank(), hvd.size())
    seen = []
    training.fit(
        3,
        saved=SavedTraining.newest(folder, collectives.OF_PROCESS),
        callbacks=[lambda param: seen.append(training.module.data_state)],
    )
    assert seen[0] == {"epoch": epoch, "images": images * hvd.size()}


def test_a_damaged_file_is_named_on_every_rank_and_the_older_checkpoint_used(folder):
    Training().fit(4, folder, every=2)
    (_, newest), (older, older_path) = folder.complete()
    if hvd.rank() == 0:
        with open(os.path.join(newest, "centers-00000.npy"), "r+b") as file:
            file.seek(-3, os.SEEK_END)
            byte = file.read(1)
            file.seek(-3, os.SEEK_END)
            file.write(bytes([byte[0] ^ 1]))
    collectives.barrier("damaged")
    with pytest.raises(collectives.JobError, match="centers-00000.npy.*SHA-256"):
        SavedTraining.open(newest, collectives.OF_PROCESS)
    assert SavedTraining.newest(folder, collectives.OF_PROCESS).manifest.num_update == older
    collectives.barrier("opened")
    if hvd.rank() == 0:
        os.rename(newest, older_path + "9")
    collectives.barrier("renamed")
    with pytest.raises(collectives.JobError, match="contains update 4, not the one in its name"):
        SavedTraining.open(older_path + "9", collectives.OF_PROCESS)
    if hvd.rank() == 0:
        os.remove(os.path.join(older_path, "backbone.npz"))
    collectives.barrier("removed")
    # Starting again would discard what the user may still be able to repair.
    with pytest.raises(
        collectives.JobError, match=f"all checkpoints in {folder.path} are damaged; to start from update 0, move them"
    ):
        SavedTraining.newest(folder, collectives.OF_PROCESS)
