"""Centers in bfloat16: stochastic rounding, every store and optimizer against float64, and what is refused."""

from functools import partial

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, linear, normalize

from partial_fc_torch import CosFace, PartialFC
from partial_fc_torch.layer.optimizers import Adagrad, AdamW
from partial_fc_torch.layer.rounding import Rounding
from partial_fc_torch.layer.rows import Centers, TileGradient, gather_rows, inverse_norms
from partial_fc_torch.layer.stores import CenterStore

CLASSES, E, B, SCALE, LR = 60, 16, 8, 16.0, 0.5
NARROW = {"center_dtype": "bfloat16"}
OPTIMIZERS = {"sgd": "sgd", "adamw": AdamW(eps=0.01), "adagrad": Adagrad(eps=0.01, weight_decay=0.1)}


def build(**arguments):
    sizes = {"num_classes": CLASSES, "embedding_size": E, "tile_classes": 20, "device": "cpu"}
    return PartialFC(CosFace(SCALE, 0.1), **{**sizes, "lr": LR, **arguments})


def batches(steps, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        yield torch.from_numpy(rng.standard_normal((B, E), np.float32)), torch.from_numpy(rng.integers(0, CLASSES, B))


def spacing(values):
    """The distance of bfloat16 numbers, of 8 bits, at each value."""
    return torch.exp2(torch.floor(torch.log2(values.abs().double().clamp(min=1e-30))) - 7)


def rounded(values, num_update, rows=None, **arguments):
    rows = torch.arange(len(values)) if rows is None else rows
    return Rounding(0, num_update, **{"first_row": 0, **arguments})(values, rows, 0)


def test_the_mean_of_the_rounded_numbers_is_the_number():
    count, values = 400, torch.randn(300, 33, generator=torch.Generator().manual_seed(0))
    errors = torch.stack([rounded(values, update).double() - values.double() for update in range(count)])
    errors /= spacing(values)
    assert errors.abs().max() < 1
    # Of a variance of f (1 - f), 1/6 on average over the fractions f.
    deviation = (1 / 6 / count) ** 0.5
    assert abs(errors.mean()) < 5 * deviation / values.numel() ** 0.5
    assert errors.mean(dim=0).std() == pytest.approx(deviation, rel=0.05)
    # Independent of each other in rows, columns and updates.
    for first, second in ((errors[0, :-1], errors[0, 1:]), (errors[0, :, :-1], errors[0, :, 1:]), errors[:2]):
        correlation = np.corrcoef(first.flatten(), second.flatten())[0, 1]
        assert abs(correlation) < 5 / first.numel() ** 0.5


def test_numbers_that_bfloat16_has_do_not_change():
    values = torch.randn(50, 7).to(torch.bfloat16)
    assert torch.equal(rounded(values.float(), 3), values)
    special = torch.tensor([[np.inf, -np.inf, np.nan, 0.0, -0.0]])
    special.view(torch.int32)[0, 2] = 0x7FFFFFFF  # the NaN of GPUs
    found = torch.cat([rounded(special, update) for update in range(50)])
    assert found[:, 2].isnan().all() and (found[:, :2] == special[:, :2]).all() and (found[:, 3:] == 0).all()


def test_a_row_is_rounded_alike_wherever_it_is():
    """On any rank, among any rows, and in an array of copied rows."""
    values = torch.randn(40, 5)
    whole, rows = rounded(values, 7), torch.tensor([12, 3, 30])
    assert torch.equal(rounded(values[10:], 7, first_row=10), whole[10:])
    assert torch.equal(rounded(values[rows], 7, rows), whole[rows])
    assert torch.equal(rounded(values[rows], 7, torch.arange(3), local_rows=rows), whole[rows])
    every = torch.arange(40)
    others = rounded(values, 8), Rounding(1, 7, 0)(values, every, 0), Rounding(0, 7, 0)(values, every, 1)
    assert not any(torch.equal(other, whole) for other in others)


@pytest.mark.parametrize("nearest", [False, True])
def test_small_updates_add_up_unless_they_are_rounded_to_nearest(nearest):
    """1,000 updates of 2^-13 of the centers, whose neighbors are 2^-8 to 2^-7 of them away."""
    weight, optimizer = torch.ones(32, E, dtype=torch.bfloat16), build(momentum=0.0, weight_decay=0.0).row_optimizer
    momentum, rows = torch.zeros_like(weight), torch.arange(32)
    for update in range(1000):
        centers = gather_rows(weight, rows)
        raw = torch.ones(32, E)
        raw[:, ::2] = -1  # orthogonal to the centers, which are all 1
        tile = TileGradient(rows, centers, inverse_norms(centers), raw, scale=1.0)
        rounding = None if nearest else Rounding(0, update, 0)
        optimizer.update(Centers(weight, {"weight_mom": momentum}, rounding=rounding), tile, 2.0**-13)
    moved = (weight.double() - 1) * torch.tensor([1.0, -1.0]).repeat(E // 2)
    if nearest:
        assert not moved.any()
    else:
        # 1000 * 2^-13 = 0.122, a little more in the direction that shrinks, whose unit gradient has no such component.
        assert moved.mean() == pytest.approx(0.122, rel=0.05)


def updated(name, weight, states, gradient):
    """The optimizers in float64, from their definitions."""
    if name == "sgd":
        momentum = 0.9 * states["weight_mom"] + gradient + 5e-4 * weight
        return weight - LR * momentum, {"weight_mom": momentum}
    if name == "adagrad":
        gradient = gradient + 0.1 * weight
        total = states["weight_sum"] + gradient.square().mean(dim=1, keepdim=True)
        return weight - LR * gradient / (total.sqrt() + 0.01), {"weight_sum": total}
    updates = states["weight_updates"] + 1
    first = 0.9 * states["weight_exp_avg"] + 0.1 * gradient
    second = 0.999 * states["weight_exp_avg_sq"] + 0.001 * gradient**2
    step = first / (1 - 0.9**updates) / ((second / (1 - 0.999**updates)).sqrt() + 0.01)
    states = {"weight_exp_avg": first, "weight_exp_avg_sq": second, "weight_updates": updates}
    return weight * (1 - LR * 0.01) - LR * step, states


@pytest.mark.parametrize("place", ["memory", "host", "files", "host and files"])
@pytest.mark.parametrize("ratio", [0.3, 1.0])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_step_is_that_of_float64_to_a_rounding(name, ratio, place, tmp_path):
    where = {"folder": str(tmp_path)} if "files" in place else {}
    layer = build(sample_rate=ratio, optimizer=OPTIMIZERS[name], on_host="host" in place, **NARROW, **where)
    layer.copy_rows("weight", [(0, 100 * layer.rows("weight").float().numpy())])  # of order 1
    indices, sample = [], layer.sample
    layer.sample = lambda labels: indices.append(sample(labels)) or indices[-1]
    for features, labels in batches(4):
        before = {field: layer.rows(field).double().clone() for field in layer.widths}
        gradient, loss = layer.step(features, labels)
        (index,) = indices[-1:]
        weight = before.pop("weight")
        centers, unit = weight[index].requires_grad_(), features.double().requires_grad_()
        columns = torch.searchsorted(index, labels)
        cosines = linear(normalize(unit), normalize(centers))
        expected = cross_entropy(SCALE * (cosines - 0.1 * torch.nn.functional.one_hot(columns, len(index))), columns)
        expected.backward()
        torch.testing.assert_close(loss.double(), expected.detach(), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(gradient.double(), unit.grad, rtol=1e-4, atol=1e-5)
        states = {field: rows[index] for field, rows in before.items()}
        wanted, states = updated(name, centers.detach(), states, centers.grad)
        for field, values in {"weight": wanted, **states}.items():
            found = layer.rows(field)[index]
            narrow = layer.widths[field] > 1
            assert found.dtype == (torch.bfloat16 if narrow else torch.float32)
            bound = narrow * spacing(torch.maximum(values.abs(), found.abs().double())) + 1e-5 * values.abs() + 1e-6
            assert ((found.double() - values).abs() <= bound).all(), field
        others = np.setdiff1d(np.arange(CLASSES), index)
        assert torch.equal(layer.rows("weight")[others].double(), weight[others])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_files_and_copies_on_the_device_train_alike(name, tmp_path):
    make = partial(build, sample_rate=0.3, optimizer=OPTIMIZERS[name], **NARROW)
    layers = [make(), make(folder=str(tmp_path))]
    for features, labels in batches(5):
        for layer in layers:
            layer.step(features, labels)
    for field in layers[0].widths:
        assert torch.equal(layers[0].rows(field), layers[1].rows(field))
    files = layers[1]._store._files.pieces[0]
    assert files["weight"].rows.nbytes == 2 * CLASSES * E


def test_saved_centers_are_float32_and_either_type_loads_them(tmp_path):
    layer, folder = build(prefix=str(tmp_path), **NARROW), str(tmp_path)
    for batch in batches(3):
        layer.step(*batch)
    layer.save_params()
    saved = torch.load(tmp_path / "rank_0_softmax_weight.pt")
    assert saved.dtype == torch.float32 and torch.equal(saved, layer.weight.detach().float())
    for loaded in (build(prefix=folder, resume=True), build(prefix=folder, resume=True, **NARROW)):
        for field in layer.widths:
            assert torch.equal(loaded.rows(field).float(), layer.rows(field).float())


def test_an_explicit_step_and_a_state_dict():
    whole, first, second = (build(update_in_backward=False, sample_rate=0.5, **NARROW) for _ in range(3))

    def run(layer, parts):
        for features, labels in parts:
            layer(features, labels).backward()
            layer.optimizer.step()

    run(whole, batches(4))
    run(first, list(batches(4))[:2])
    second.load_state_dict(first.state_dict())
    run(second, list(batches(4))[2:])
    for field in whole.widths:
        assert whole.rows(field).any() and torch.equal(whole.rows(field), second.rows(field))


class Float32Store(CenterStore):
    def allocate(self, name, width, dtype=None):
        return torch.zeros(self.num_local, width)


def test_what_has_no_16_bit_centers_is_refused():
    with pytest.raises(ValueError, match="center_dtype is float16, expected float32 or bfloat16"):
        build(center_dtype=torch.float16)
    with pytest.raises(ValueError, match="the store has weight in torch.float32, not in center_dtype=torch.bfloat16"):
        build(store=Float32Store, **NARROW)
    with pytest.raises(TypeError, match="the centers are torch.bfloat16, but must be float32 or float64"):
        build().to(torch.bfloat16).step(*next(batches(1)))
    with pytest.raises(TypeError, match="weight_updates is torch.bfloat16, but must be float32"):
        build(optimizer="adamw", **NARROW).to(torch.bfloat16).step(*next(batches(1)))  # it would count no updates
