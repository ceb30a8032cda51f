"""What the ranks exchange in a step: three collectives, rank flags, and errors that all of them raise."""

import contextlib

import numpy as np
import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile
from torch_layer import LOCAL, RANK, SIZE, E, G, build, random_batch

from partial_fc.distributed.collectives import Collectives
from partial_fc.distributed.errors import JobError
from partial_fc.layer.label_encoding import RankFlags
from partial_fc_torch import exclude_from_ddp
from partial_fc_torch.collectives import TorchBackend, default_collectives

LAST = SIZE - 1
B = G // SIZE


def local_batch(classes=31):
    """Features (B, E) and labels (B,) of this rank."""
    features, labels = random_batch(classes)
    return torch.from_numpy(features[LOCAL]), torch.from_numpy(labels[LOCAL])


@contextlib.contextmanager
def unchanged(layer):
    """Asserts that no center changes inside, and that the layer still trains afterwards."""
    before = layer.weight.clone(), layer.weight_mom.clone()
    yield
    assert torch.equal(layer.weight, before[0]) and torch.equal(layer.weight_mom, before[1])
    layer.step(*local_batch())
    assert (layer.weight != before[0]).any()


@pytest.mark.world_size(2, 3)
@pytest.mark.parametrize("ratio", [1.0, 0.4])
def test_the_layer_runs_three_collectives_a_step(ratio):
    layer, batch = build(31, ratio), local_batch()
    layer.step(*batch)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as measured:
        for _ in range(3):
            layer.step(*batch)
    calls = [(event.name, event.input_shapes[:2]) for event in measured.events() if event.name.startswith("c10d::")]
    assert calls == 3 * [
        ("c10d::_allgather_base_", [[G, E + 2], [B, E + 2]]),
        ("c10d::_allgather_base_", [[3 * SIZE, G], [3, G]]),
        ("c10d::alltoall_base_", [[G, E], [G, E]]),  # the reduce-scatter on a CPU
    ]


@pytest.mark.world_size(2, 3)
def test_the_collectives_have_the_names_that_the_watchdog_reports():
    waits = []

    class Recorded(Collectives):
        @contextlib.contextmanager
        def waiting(self, name):
            waits.append(name)
            yield

    layer = build(31, collectives=Recorded(TorchBackend()))
    layer.step(*local_batch())
    first = "all-gather batch"  # the sizes, in the first step only
    assert list(dict.fromkeys(waits)) == [
        first,
        "all-gather features",
        "all-gather softmax_statistics",
        "reduce-scatter feature_gradient",
    ]


def test_rank_flags_reach_all_ranks():
    layer = build(31)
    layer.exchange.rank_flags = RankFlags.STOP_REQUESTED if RANK == LAST else RankFlags(0)
    layer.step(*local_batch())
    assert layer.exchange.all_rank_flags.tolist() == [0] * LAST + [RankFlags.STOP_REQUESTED]


OF_RANK = rf" \(rank {LAST} of {SIZE}\)$" if SIZE > 1 else "$"


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    "wrong, error, message",
    [
        ({"labels": torch.full((B,), -2)}, JobError, f"label -2 .*{OF_RANK}"),
        ({"labels": torch.tensor([5] * (B - 1) + [31])}, JobError, "label 31 "),
        ({"labels": torch.zeros(B)}, TypeError, "torch.float32, expected integers"),
        ({"labels": np.arange(B)[::-1]}, TypeError, "negative"),
        ({"labels": torch.zeros(B, dtype=torch.bool)}, TypeError, "torch.bool, expected integers"),
        ({"labels": torch.zeros(B + 1, dtype=torch.int64)}, JobError, rf"labels have shape \({B + 1},\)"),
        ({"labels": torch.zeros(B, 2, 2, dtype=torch.int64)}, JobError, rf"labels have shape \({B}, 2, 2\)"),
        ({"features": torch.ones(B, E + 1)}, JobError, rf"embeddings have shape \({B}, 5\)"),
        ({"features": torch.ones(B, E, 1, 1)}, JobError, rf"embeddings have shape \({B}, 4, 1, 1\), .* flatten them"),
        ({"features": torch.ones(0, E), "labels": torch.arange(0)}, JobError, r"embeddings have shape \(0, 4\)"),
    ],
)
def test_a_wrong_batch_on_one_rank_is_refused_on_all(wrong, error, message, first):
    layer, (features, labels) = build(31), local_batch()
    if not first:
        layer.step(features, labels)
    batch = {"features": features, "labels": labels, **(wrong if RANK == LAST else {})}
    with unchanged(layer), pytest.raises(error, match=message):
        layer.step(**batch)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_integers_of_any_width_are_labels(dtype):
    features, labels = local_batch()
    expected = build(31).step(features, labels)
    for form in (labels.to(dtype), labels.to(dtype)[:, None], labels.to(dtype).numpy()):
        gradient, loss = build(31).step(features, form)
        assert loss == expected[1] and torch.equal(gradient, expected[0])


@pytest.mark.world_size(2, 3)
@pytest.mark.parametrize("first", [True, False])
def test_batches_of_different_sizes_are_refused_on_all_ranks(first):
    layer = build(31)
    features, labels = local_batch()
    if not first:
        layer.step(features, labels)
    size = B - 1 if RANK == LAST else B
    with unchanged(layer):
        with pytest.raises(JobError, match=rf"batch sizes are \[{B}, .*{B - 1}\]"):
            layer.step(features[:size], labels[:size])


@pytest.mark.world_size(2, 3)
@pytest.mark.parametrize("first", [True, False])
def test_different_numbers_of_labels_are_refused_on_all_ranks(first):
    layer, (features, labels) = build(31), local_batch()
    if not first:
        layer.step(features, labels)
    with unchanged(layer), pytest.raises(JobError, match=r"numbers of labels per item are \[1, .*2\]"):
        layer.step(features, labels[:, None].expand(-1, 2 if RANK == LAST else 1))


def test_the_number_of_labels_may_change_on_all_ranks():
    layer, (features, labels) = build(31), local_batch()
    for count in (1, 3, 2, 1):
        assert layer.step(features, labels[:, None].expand(-1, count))[1].isfinite()


@pytest.mark.parametrize("ratio", [1.0, 0.4])
def test_a_smaller_batch_on_all_ranks_is_exact(ratio):
    """The last batch of an epoch may be smaller; then the size changes back. Each step samples once."""
    changing, layers = build(31, ratio), {size: build(31, ratio) for size in (B, 1)}
    features, labels = local_batch()
    for batch in (B, 1):
        for fresh in (changing, layers[batch]):
            with torch.no_grad():
                fresh.weight.copy_(build(31).weight)
                fresh.weight_mom.zero_()
            fresh.sampler.restart(0)
        gradient, loss = changing.step(features[:batch], labels[:batch])
        expected, expected_loss = layers[batch].step(features[:batch], labels[:batch])
        assert loss == expected_loss and torch.equal(gradient, expected)
        assert gradient.shape == (batch, E) and torch.equal(changing.weight, layers[batch].weight)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_nonfinite_loss_stops_all_ranks_before_any_center_changes(value):
    layer = build(31)
    features, labels = local_batch()
    broken = features.clone()
    if RANK == LAST:
        broken[0, 0] = value
    with unchanged(layer):
        with pytest.raises(FloatingPointError, match=rf"update 1 \(non-finite features on rank {LAST}\)"):
            layer.step(broken, labels)


def test_a_missing_positive_stops_all_ranks():
    layer = build(12)
    layer.sample = lambda labels: torch.arange(1, layer.num_local)  # omits its first class
    labels = torch.arange(0, 12, 2)[LOCAL]
    with pytest.raises(ValueError, match=f"{SIZE} of 6 labels .* label 0 at row 0"):
        layer.step(torch.ones(B, E), labels)


def test_objects_and_numbers_of_all_ranks():
    backend = default_collectives.backend
    assert (backend.rank, backend.size) == (RANK, SIZE)
    assert 0 <= default_collectives.local_rank < default_collectives.local_size
    assert backend.gather_object("any", {"rank": RANK}) == [{"rank": rank} for rank in range(SIZE)]
    assert backend.max("largest", -float(RANK)) == 0 and backend.max("own", RANK + 0.5) == LAST + 0.5
    backend.barrier("here")


@pytest.mark.world_size(2, 3)
def test_collectives_of_different_names_are_an_error():
    with pytest.raises(RuntimeError, match="first, .*other"):
        default_collectives.backend.gather_object("first" if RANK == 0 else "other", 1)


CLASSES = 30  # as many on each rank; DistributedDataParallel aborts if their numbers differ


class WholeModel(torch.nn.Module):
    """A backbone with its layer, as in a LightningModule."""

    def __init__(self):
        super().__init__()
        self.backbone, self.head = torch.nn.Linear(E, E, bias=False), build(CLASSES)
        torch.nn.init.eye_(self.backbone.weight)

    def forward(self, features, labels):
        return self.head(self.backbone(features), labels)


@pytest.mark.world_size(2, 3)
def test_a_layer_whose_centers_ddp_has_copied_is_an_error_on_all_ranks():
    model = DistributedDataParallel(WholeModel())
    with pytest.raises(JobError, match=r"call partial_fc.exclude_from_ddp\(model\).* \(rank 1 of"):
        model(*local_batch(CLASSES))


@pytest.mark.world_size(2, 3)
def test_a_layer_that_is_excluded_from_ddp_trains_as_outside_of_it():
    outside, inside = WholeModel(), WholeModel()
    outside.backbone = DistributedDataParallel(outside.backbone)
    exclude_from_ddp(inside)
    wrapped = DistributedDataParallel(inside)
    for _ in range(3):
        losses = []
        for model in (outside, wrapped):
            losses.append(model(*local_batch(CLASSES)))
            losses[-1].backward()
        assert losses[0] == losses[1]
    assert torch.equal(outside.head.weight, inside.head.weight)
    assert torch.equal(outside.backbone.module.weight.grad, inside.backbone.weight.grad)


@pytest.mark.world_size(2, 3)
def test_layers_of_other_sizes_are_an_error_on_all_ranks():
    layer = build(31 + (RANK == LAST))
    with pytest.raises(JobError, match=r"the ranks' values of num_classes are \[31, .*32\]"):
        layer.step(*local_batch())
