"""The update of the centers: PyTorch's operators on GPUs and NumPy on CPUs give the same result; optimizers by name."""

import numpy as np
import pytest
import torch

from partial_fc.layer.center_states import CENTER_STATES, center_widths
from partial_fc.layer.sgd import SGDParams
from partial_fc_torch.layer.optimizers import OPTIMIZERS, Adagrad, AdamW, optimizer_named, sgd
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


def by_adamw(weight, gradients):
    """Returns the rows after these gradients, in float64, and their states."""
    weight = weight.double().requires_grad_()
    optimizer = torch.optim.AdamW([weight], lr=0.1, betas=(0.9, 0.999), eps=1e-3, weight_decay=0.05)
    for weight.grad in gradients:
        optimizer.step()
    state = optimizer.state[weight]
    return weight.detach(), [state["exp_avg"], state["exp_avg_sq"], state["step"].expand(len(weight), 1)]


def by_adagrad(weight, gradients):
    weight, total = weight.double(), 0
    for gradient in gradients:
        gradient = gradient + 0.05 * weight
        total = total + (gradient**2).mean(dim=1, keepdim=True)
        weight = weight - 0.1 * gradient / (total.sqrt() + 1e-3)
    return weight, [total]


# The last two exceed one block.
@pytest.mark.parametrize(
    "rows", [slice(20, 200), torch.arange(3, 290, 2), slice(5, 70_000), torch.arange(1, 80_000, 2)]
)
@pytest.mark.parametrize(
    "optimizer, reference", [(AdamW(eps=1e-3, weight_decay=0.05), by_adamw), (Adagrad(1e-3, 0.05), by_adagrad)]
)
def test_only_the_rows_of_a_tile_change_and_as_in_float64(rows, optimizer, reference):
    torch.manual_seed(0)
    weight = torch.randn(80_000, 8)
    before, gradients = weight.clone(), []
    _, *widths = center_widths(8, optimizer.states).items()
    states = {name: torch.zeros(len(weight), width) for name, width in widths}
    for _ in range(3):
        at = weight[rows]
        raw = torch.randn_like(at)
        unit = at.double() / at.double().norm(dim=1, keepdim=True)
        gradients.append(0.25 * (raw - (raw * unit).sum(dim=1, keepdim=True) * unit))
        tile = TileGradient(rows, at, inverse_norms(at), raw, scale=0.25)
        optimizer.update(Centers(weight, states), tile, learning_rate=0.1)
    expected, expected_states = reference(before[rows], gradients)
    np.testing.assert_allclose(weight[rows], expected, rtol=1e-5, atol=1e-4)
    for state, wanted in zip(states.values(), expected_states):
        np.testing.assert_allclose(state[rows], wanted, rtol=1e-4, atol=1e-5)
        state[rows] = 0
        assert not state.any()
    weight[rows] = before[rows]
    assert torch.equal(weight, before)


def test_optimizers_by_name():
    assert OPTIMIZERS.keys() == CENTER_STATES.keys()
    for name, kind in OPTIMIZERS.items():
        optimizer = optimizer_named(name, 0.25, momentum=0.5, momentum_convention="steps")
        assert type(optimizer) is kind and optimizer.weight_decay == 0.25 and optimizer.states == CENTER_STATES[name]
    assert optimizer_named("sgd", 0.25, momentum=0.5, momentum_convention="steps").momentum == 0.5
    own = optimizer_named("partial_fc_torch.layer.optimizers.adamw:AdamW", 0.25, momentum=0.5)
    assert type(own) is AdamW and own.weight_decay == 0.25


def described(**options):
    return options


@pytest.mark.parametrize(
    "name, message",
    [
        ("adam", "'adam', but must be a known name"),
        ("nothing.here:Adam", "nothing.here cannot be imported"),
        (f"{__name__}:by_adamw", "cannot be made with {'weight_decay': 0.0}"),
        (f"{__name__}:described", "makes a dict"),
        ("builtins:dict", "name a subclass of partial_fc_torch.*RowOptimizer"),
    ],
)
def test_other_objects_are_refused_as_optimizers(name, message):
    with pytest.raises(ValueError, match=message):
        optimizer_named(name, 0.0)
