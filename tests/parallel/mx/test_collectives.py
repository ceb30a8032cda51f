"""The collectives of a step, from Horovod's timeline: number, bytes and order; and the job's collectives."""

import os
import random
import threading
import time

import horovod.mxnet as hvd
import mxnet as mx
import numpy as np
import pytest
from layer import Batches, D, E, G, build_bank, random_batches, ready_module

from benchmarks.horovod_timeline import read_timeline
from partial_fc.distributed.errors import JobError
from partial_fc_mxnet import MarginLoss
from partial_fc_mxnet.collectives import default_collectives

pytestmark = pytest.mark.world_size(2, 3)
STEPS, FLOAT = 4, 4
ONCE = ("class_start", "shards", "status.bind", "everyone_is_done")  # before and after


@pytest.fixture
def timeline(tmp_path):
    """Starts the timeline; returns a function that stops it and returns its collectives on rank 0, else None.

    Only for this file, because Horovod's thread for the timeline spins on every rank.
    """
    if os.environ.get("HOROVOD_TIMELINE") != "DYNAMIC":
        pytest.skip("Horovod has a timeline if HOROVOD_TIMELINE=DYNAMIC is set when it starts")
    path = tmp_path / "timeline.json"
    hvd.start_timeline(str(path))

    def stop():
        mx.nd.waitall()
        hvd.allreduce(mx.nd.zeros((1,)), name="everyone_is_done").wait_to_read()
        hvd.stop_timeline()
        return read_timeline(path) if hvd.rank() == 0 else None

    return stop


@pytest.mark.parametrize("ratio", [1.0, 0.4])
def test_the_layer_runs_three_collectives_a_step(ratio, timeline, tmp_path, monkeypatch):
    module = ready_module(build_bank(31, ratio, tmp_path), MarginLoss(embedding_size=E))
    batches = Batches(*random_batches(31, STEPS))
    with monkeypatch.context() as patch:
        patch.setattr(mx.nd, "waitall", lambda: pytest.fail("a step waits for all operations"))
        for batch in batches:
            module.forward_backward(batch)
            module.update()
    measured = timeline()
    if hvd.rank() > 0:
        return
    layer = [one for one in measured if not one.name.startswith(("grad.", *ONCE))]
    assert [(one.kind, one.name, one.shape) for one in layer] == [
        ("allgather", "features", (G, E + 2)),
        ("allgather", "softmax_statistics", (3 * hvd.size(), G)),
        ("reducescatter", "feature_gradient", (G // hvd.size(), E)),
    ] * STEPS
    assert [one.nbytes for one in layer[:3]] == [
        FLOAT * G * (E + 2),
        FLOAT * 3 * hvd.size() * G,
        FLOAT * G * E // hvd.size(),
    ]
    gradients = [(one.kind, one.name, one.nbytes) for one in measured if one.name.startswith("grad.")]
    assert sorted(gradients) == sorted(
        [("allreduce", "grad.fc1_weight", FLOAT * E * D), ("allreduce", "grad.fc1_bias", FLOAT * E)] * STEPS
    )


class Gate(mx.operator.CustomOp):
    """The identity, whose backward pass waits until the gate is open."""

    opened = threading.Event()
    was_open = []

    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0])

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        Gate.was_open.append(Gate.opened.wait(20))
        self.assign(in_grad[0], req[0], out_grad[0])


@mx.operator.register("gate")
class GateProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        return Gate()


def test_gradients_are_reduced_while_the_backward_pass_of_the_backbone_runs(tmp_path):
    batches = Batches(*random_batches(31, 1))
    hidden = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=D, name="before")
    hidden = mx.sym.Custom(hidden, op_type="gate")
    symbol = mx.sym.FullyConnected(hidden, num_hidden=E, name="after")
    bank, weights = build_bank(31, 1.0, tmp_path), {"after_weight": mx.nd.ones((E, D))}
    module = ready_module(bank, MarginLoss(embedding_size=E), symbol=symbol, arg_params=weights)
    module.forward_backward(batches.next())
    module.update()
    # The backward pass has reached the gate. If the all-reduces waited for its end, this read would block.
    group = module._module._exec_group
    gradients = dict(zip(group.param_names, group.grad_arrays))
    gradients["after_weight"][0].wait_to_read()
    Gate.opened.set()
    gradients["before_weight"][0].wait_to_read()
    assert Gate.was_open == [True]


def test_sums_are_bit_identical_whenever_each_gradient_is_ready():
    rng, moments = np.random.default_rng(hvd.rank()), random.Random(hvd.rank())
    gradients = [rng.standard_normal(size).astype(np.float32) for size in (1000, 50000, 300000, 7, 20000) * 3]
    sums = set()
    for _ in range(4):
        arrays = [mx.nd.array(gradient) for gradient in gradients]
        for number, array in enumerate(arrays):
            time.sleep(moments.choice((0, 0, 0.004)))
            hvd.allreduce_(array, op=hvd.Sum, name=f"alike{number}", priority=-number)
        sums.add(b"".join(array.asnumpy().tobytes() for array in arrays))
    assert len(sums) == 1


def test_an_error_on_one_rank_is_raised_on_all():
    assert default_collectives.run_on_all_ranks("test", hvd.rank) == hvd.rank()
    assert default_collectives.on_rank_zero("test", divmod, 7, 2) == ((3, 1) if hvd.rank() == 0 else None)
    place = rf"\(.*{os.path.basename(__file__)}:\d+\)"  # position of the lambda
    for rank in range(2):
        with pytest.raises(JobError, match=rf"invalid literal .* 'x' {place} \(rank {rank} of {hvd.size()}\)"):
            default_collectives.run_on_all_ranks("test", lambda failing=rank: int("x" if hvd.rank() == failing else 1))


def test_values_of_all_ranks():
    rank, size = hvd.rank(), hvd.size()
    assert default_collectives.gather_object("test", {"rank": rank}) == [{"rank": other} for other in range(size)]
    assert default_collectives.broadcast("test", f"value of rank {rank}") == "value of rank 0"
    assert default_collectives.max("test", float(rank)) == size - 1
    default_collectives.barrier("test")


def test_facts_that_differ_between_ranks():
    default_collectives.assert_same_on_all_ranks({"seed": 7})
    with pytest.raises(JobError, match="seed differs between ranks: 1 on rank 1, but 0 on rank 0"):
        default_collectives.assert_same_on_all_ranks({"seed": int(hvd.rank() == 1)})
