"""The update of the centers: PyTorch's operators on GPUs and NumPy on CPUs give the same result; optimizers by name."""

import numpy as np
import pytest
import torch

from partial_fc.layer.center_states import CENTER_STATES, center_widths
from partial_fc.layer.sgd import SGDParams
from partial_fc_torch.layer.optimizers import OPTIMIZERS, Adagrad, AdamW, optimizer_named, sgd
from partial_fc_torch.layer.optimizers import optimizer as optimizer_module
from partial_fc_torch.layer.rows import Centers, TileGradient, inverse_norms


@pytest.mark.parametrize("convention", ["gradients", "steps"])
@pytest.mark.parametrize("rows", [slice(20, 200), torch.arange(3, 290, 2)])
def test_both_updates_are_the_same(rows, convention):
    params, results = SGDParams(0.2, momentum=0.9, wd=0.05, rescale_grad=0.25, momentum_convention=convention), []
    for update in (sgd._update_on_cpu, sgd._update_by_operators):
        rng = np.random.default_rng(0)
        weight, momentum, gradient = (torch.from_numpy(rng.standard_normal((300, 8))).float() for _ in range(3))
        tile = TileGradient(rows, weight[rows], inverse_norms(weight[rows]), gradient[rows].clone(), scale=0.25)
        update(Centers(weight, {"weight_mom": momentum}), tile, params)
        results.append((weight, momentum))
    for host, device in zip(*results):
        # A few float32 roundings of numbers of order 1, 6e-8 each.
        np.testing.assert_allclose(host, device, rtol=0, atol=1e-6)


@pytest.mark.parametrize("rows", [slice(20, 200), torch.arange(3, 290, 2)])
@pytest.mark.parametrize("optimizer", [AdamW(), Adagrad()])
def test_a_tile_of_several_blocks_changes_like_one_block_and_no_other_row_changes(rows, optimizer, monkeypatch):
    torch.manual_seed(0)
    start, raw, results = torch.randn(300, 8), torch.randn(300, 8), []
    for numbers in (optimizer_module.BLOCK_NUMBERS, 50):  # 6 rows
        monkeypatch.setattr(optimizer_module, "BLOCK_NUMBERS", numbers)
        weight = start.clone()
        _, *widths = center_widths(8, optimizer.states).items()
        states = {name: torch.zeros(len(weight), width) for name, width in widths}
        tile = TileGradient(rows, weight[rows], inverse_norms(weight[rows]), raw[rows].clone(), scale=0.25)
        optimizer.update(Centers(weight, states), tile, learning_rate=0.1)
        results.append([weight, *states.values()])
    assert all(map(torch.equal, *results))
    others = np.setdiff1d(np.arange(300), np.arange(300)[rows])
    assert torch.equal(weight[others], start[others]) and (weight[rows] != start[rows]).any(dim=1).all()
    assert not any(state[others].any() for state in states.values())
    assert all(state[rows].any(dim=1).all() for state in states.values())


def test_optimizers_by_name():
    assert OPTIMIZERS.keys() == CENTER_STATES.keys()
    for name, kind in OPTIMIZERS.items():
        optimizer = optimizer_named(name, 0.25, momentum=0.5, momentum_convention="steps")
        assert type(optimizer) is kind and optimizer.weight_decay == 0.25 and optimizer.states == CENTER_STATES[name]
    assert optimizer_named("sgd", 0.25, momentum=0.5, momentum_convention="steps").momentum == 0.5
    users = optimizer_named("partial_fc_torch.layer.optimizers.adamw:AdamW", 0.25, momentum=0.5)
    assert type(users) is AdamW and users.weight_decay == 0.25


def described(**options):
    return options


def takes_nothing():
    return AdamW()


@pytest.mark.parametrize(
    "name, message",
    [
        ("adam", "'adam', but must be a known name"),
        ("nothing.here:Adam", "nothing.here cannot be imported"),
        (f"{__name__}:takes_nothing", "cannot be created with {'weight_decay': 0.0}"),
        (f"{__name__}:described", "makes a dict"),
        ("builtins:dict", "name a subclass of partial_fc_torch.*RowOptimizer"),
    ],
)
def test_other_objects_are_refused_as_optimizers(name, message):
    with pytest.raises(ValueError, match=message):
        optimizer_named(name, 0.0)
