"""The layer in a user's loop: explicit steps, accumulated gradients, its state in every form."""

import warnings

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch_layer import LOCAL, LR, RANK, E, G, all_ranks, build, build_v2, random_batch

from partial_fc_torch import PartialFC, ShardedState
from partial_fc_torch.layer.optimizers import SGD, Adagrad, AdamW
from partial_fc_torch.layer.rows import StepCenters
from partial_fc_torch.layer.stores import CenterStore, HostStore

CLASSES = 31
TOLERANCE = dict(rtol=3e-4, atol=3e-5)  # as against the oracle: float32 sums in another order, after some steps


def local_batch(seed):
    features, labels = random_batch(CLASSES, seed)
    return torch.from_numpy(features[LOCAL]).requires_grad_(), torch.from_numpy(labels[LOCAL])


def arrays(layer):
    layer.synchronize()
    return {name: all_ranks(getattr(layer, name)) for name in layer.widths}


def assert_same(found, expected, **tolerance):
    for name, rows in arrays(found).items():
        np.testing.assert_allclose(rows, arrays(expected)[name], **(tolerance or TOLERANCE), err_msg=name)


def host_store(num_local, device):
    """Copies rows, as from the host to a GPU."""
    return HostStore(CenterStore(num_local, device), device, cores=2)


class ReversedStore(CenterStore):
    """Copies the rows of a step in reversed order."""

    movable = False

    def load(self, centers, index):
        classes = index.flip(0)
        states = {name: state[classes] for name, state in centers.states.items()}
        return StepCenters(centers.weight[classes], states, None, torch.arange(len(index)).flip(0), classes.numpy())

    def save(self, centers, step):
        centers.weight[step.local_rows] = step.weight
        for name, state in step.states.items():
            centers.states[name][step.local_rows] = state


OPTIMIZERS = {"sgd": SGD, "adamw": AdamW, "adagrad": Adagrad}
ONE_RANK = pytest.mark.world_size(1)  # the cases differ within a rank


@pytest.mark.parametrize("ratio", [1.0, 0.3])
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(
    "store", [CenterStore, *(pytest.param(store, marks=ONE_RANK) for store in (host_store, ReversedStore))]
)
def test_an_explicit_step_equals_the_update_in_backward(name, ratio, store, monkeypatch):
    """With a loss scale, a scheduler of the learning rate, and updates of the rows in several parts."""
    monkeypatch.setattr("partial_fc_torch.layer.gradients.UPDATE_ROWS", 4)
    losses, layers = [], []
    for update_in_backward in (True, False):
        layer = build(CLASSES, ratio, optimizer=OPTIMIZERS[name](), update_in_backward=update_in_backward, store=store)
        schedule = torch.optim.lr_scheduler.StepLR(layer.optimizer, 2, 0.1)
        losses.append([])
        for seed in range(4):
            features, labels = local_batch(seed)
            loss = layer(features, labels)
            (loss if update_in_backward else 8 * loss).backward()
            if not update_in_backward:
                gradient = layer.optimizer.rows.grad
                assert gradient.shape == (layer.sampler.num_sample, E) and layer.num_update == seed
                gradient /= 8
            layer.optimizer.step()
            layer.optimizer.zero_grad()
            schedule.step()
            losses[-1].append(loss.item())
        assert layer.learning_rate == pytest.approx(LR / 100) and layer.num_update == 4
        layers.append(layer)
    np.testing.assert_allclose(*losses, rtol=1e-5)
    assert_same(*layers)


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_accumulated_gradients_equal_one_batch_of_a_fixed_set_of_classes(name, fixed):
    """All classes, or a fixed sample of a user, which excludes rows of other classes."""
    whole, parts = (
        build(CLASSES, 0.5 if fixed else 1.0, optimizer=OPTIMIZERS[name](), update_in_backward=update)
        for update in (True, False)
    )
    for layer in (whole, parts) if fixed else ():
        layer.requires_positives, layer.sample = False, lambda labels, each=layer: torch.arange(0, each.num_local, 2)
    for first in (0, 3):
        batches = [local_batch(seed) for seed in range(first, first + 3)]
        for features, labels in batches:
            (parts(features, labels) / 3).backward()
        parts.optimizer.step()
        features = torch.cat([features.detach() for features, _ in batches]).requires_grad_()
        whole(features, torch.cat([labels for _, labels in batches])).backward()
        np.testing.assert_allclose(torch.cat([each.grad for each, _ in batches]), features.grad, **TOLERANCE)
    assert_same(parts, whole)
    assert parts.num_update == whole.num_update == 2


def test_all_passes_before_a_step_have_the_same_negatives():
    """Each batch's positives replace some of them; the gradient has the rows of all passes."""
    layer, single = (build(300, 0.1, update_in_backward=False) for _ in range(2))
    samples, sample, total = [], layer.sample, torch.zeros(layer.weight.shape)
    layer.sample = lambda labels: samples.append(sample(labels)) or samples[-1]
    before = layer.weight.detach().clone()
    for _ in range(2):
        first = len(samples)
        for seed in range(3):
            features, labels = random_batch(300, seed)
            for each in (layer, single) if first == 0 else (layer,):
                each(torch.from_numpy(features[LOCAL]), torch.from_numpy(labels[LOCAL])).backward()
            if first == 0:
                total[single.optimizer.index] += single.optimizer.rows.grad
                single.optimizer.zero_grad()
        if first == 0:
            np.testing.assert_allclose(layer.optimizer.rows.grad, total[layer.optimizer.index], **TOLERANCE)
        seen = [set(index.tolist()) for index in samples[first:]]
        assert all(len(seen[0] & other) >= layer.sampler.num_sample - G for other in seen)
        assert layer.optimizer.index.tolist() == sorted(set.union(*seen))
        assert layer.optimizer.rows.grad.shape == (len(layer.optimizer.index), E)
        changed = layer.optimizer.index
        layer.optimizer.step()
        assert layer.optimizer.rows.grad is None
    assert len(seen[0] & set(samples[0].tolist())) < layer.sampler.num_sample / 2  # drawn again
    others = np.setdiff1d(np.arange(layer.num_local), np.concatenate([*samples]))
    assert torch.equal(layer.weight[others], before[others]) and (layer.weight != before)[changed].any(dim=1).all()


def test_pytorchs_tools_find_the_gradient_of_the_rows():
    """Clipping, GradScaler, zero_grad, a closure, and a skipped step."""
    layer = build(CLASSES, 0.3, optimizer=SGD(momentum=0.0, weight_decay=0.0), update_in_backward=False)
    optimizer, before = layer.optimizer, layer.weight.detach().clone()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def backward():
        features, labels = local_batch(0)
        loss = scaler.scale(layer(features, labels))
        loss.backward()
        return loss

    backward()
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(optimizer.rows, 1e-3)
    assert norm > 1e-2
    scaler.step(optimizer)
    scaler.update()
    np.testing.assert_allclose((layer.weight.detach() - before).norm() / LR, 1e-3, rtol=1e-3)
    after = layer.weight.detach().clone()
    backward()
    optimizer.rows.grad[0, 0] = torch.inf
    scaler.step(optimizer)  # skipped
    optimizer.zero_grad()
    optimizer.step()
    assert torch.equal(layer.weight, after)
    scaler.update()
    assert scaler.get_scale() == 512
    assert optimizer.step(backward).item() > 0 and not torch.equal(layer.weight, after)


def test_an_earlier_loss_is_an_error_after_a_step():
    layer = build(CLASSES, update_in_backward=False)
    loss, other = (layer(*local_batch(seed)) for seed in range(2))
    loss.backward()
    layer.optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        other.backward()


def train(layer, seeds):
    for seed in seeds:
        layer.step(*local_batch(seed))


@pytest.mark.world_size(1)
@pytest.mark.parametrize("store", [CenterStore, host_store])
def test_a_state_dict_continues_the_training(store, tmp_path):
    whole, first, second = (build(CLASSES, 0.3, optimizer=AdamW(), store=store) for _ in range(3))
    train(whole, range(4))
    train(first, range(2))
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert second.num_update == 2
    train(second, range(2, 4))
    assert_same(second, whole, rtol=0, atol=0)


def test_a_state_dict_of_only_the_centers_is_loaded():
    layer = build_v2(CLASSES)
    layer.load_state_dict({"weight": torch.ones(layer.weight.shape)})
    assert (layer.weight == 1).all()


def test_a_state_dict_of_other_classes_is_refused():
    with pytest.raises(ValueError, match=f"of {CLASSES}, this rank has .* of {CLASSES + 1}"):
        build(CLASSES + 1).load_state_dict(build(CLASSES).state_dict())


class Margin(torch.nn.Module):
    """Has a state."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, cosine, norms, labels):
        self.mean += 0.1 * norms.mean().float()
        return 8 * (cosine - 0.1)


@pytest.mark.parametrize("optimizer, sub_centers", [(SGD, 1), (Adagrad, 2)])
@pytest.mark.parametrize("classes", [CLASSES, 2])
def test_a_distributed_checkpoint_continues_the_training(folder, optimizer, sub_centers, classes):
    """With 3 ranks, 31 classes make uneven shards, and 2 classes leave one empty."""

    def make():
        sizes = {"num_classes": classes, "sample_rate": 0.5, "embedding_size": E, "sub_centers": sub_centers}
        layer = PartialFC(margin_softmax=Margin(), optimizer=optimizer(), **sizes)
        layer.learning_rate = LR
        return layer

    def run(layer, seeds):
        for seed in seeds:
            features, labels = random_batch(classes, seed)
            layer.step(torch.from_numpy(features[LOCAL]), torch.from_numpy(labels[LOCAL]))

    whole, first, second = make(), make(), make()
    run(whole, range(4))
    run(first, range(2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one process without a process group
        dcp.save({"layer": ShardedState(first)}, checkpoint_id=folder)
        dcp.load({"layer": ShardedState(second)}, checkpoint_id=folder)
    assert_same(second, first, rtol=0, atol=0)
    run(second, range(2, 4))
    assert_same(second, whole, rtol=0, atol=0)
    assert second.margin.function.mean == whole.margin.function.mean > 0 and second.num_update == 4


def test_a_seed_from_pytorch_is_drawn_by_rank_0():
    weights = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed + 10 * RANK)
        layer = build(CLASSES, 0.3, seed=None)
        weights.append(all_ranks(layer.weight))
    assert np.array_equal(weights[0], weights[1]) and not np.array_equal(weights[0], weights[2])
    torch.manual_seed(1)
    assert not np.array_equal(all_ranks(build(CLASSES, seed=None).weight), all_ranks(build(CLASSES, seed=None).weight))
