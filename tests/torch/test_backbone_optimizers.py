"""The optimizers of the backbone against PyTorch's, and which parameters have weight decay."""

import copy

import pytest
import torch
from torch import nn

import default
from partial_fc_torch.optimizers import OPTIMIZERS, build_optimizer


class Positioned(nn.Module):
    """A norm, matrices, kernels, biases, slopes and positions."""

    def __init__(self):
        super().__init__()
        self.positions = nn.Parameter(torch.randn(1, 3, 4))
        self.conv, self.norm, self.prelu = nn.Conv2d(3, 4, 2), nn.LayerNorm(4), nn.PReLU(4)
        self.proj, self.table = nn.Linear(4, 4), nn.Embedding(3, 4)
        self.proj.bias.requires_grad = False

    def no_weight_decay(self):
        return {"table.weight"}


def trained(model, optimizer, update, steps=4):
    """The parameters after some steps whose gradients follow from them."""
    for step in range(1, steps + 1):
        for number, parameter in enumerate(model.parameters()):
            parameter.grad = torch.sin(parameter.detach() * 7 + number + step)
        update(optimizer, 0.1 / step)
    return [parameter.detach() for parameter in model.parameters()]


def set_and_step(optimizer, rate):
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


@pytest.mark.parametrize(
    "name, given, expected",
    [
        ("sgd", {"momentum": 0.8}, lambda groups: torch.optim.SGD(groups, momentum=0.8, weight_decay=0.1)),
        ("adamw", {"momentum": 0.8}, lambda groups: torch.optim.AdamW(groups, weight_decay=0.1)),
        (
            "adamw",
            {"options": {"betas": (0.5, 0.6), "weight_decay": 0.2}},
            lambda groups: torch.optim.AdamW(groups, betas=(0.5, 0.6), weight_decay=0.2),
        ),
        ("torch.optim:RMSprop", {}, lambda groups: torch.optim.RMSprop(groups, weight_decay=0.1)),
        ("torch.optim:Rprop", {}, lambda groups: torch.optim.Rprop(groups)),
    ],
)
def test_updates_are_those_of_pytorch(name, given, expected):
    ours, theirs = network(), network()
    optimizer = build_optimizer(ours, name, 0.1, **given)
    results = (
        trained(ours, optimizer, lambda made, rate: made.update(rate)),
        trained(theirs, expected(theirs.parameters()), set_and_step),
    )
    assert all(torch.equal(*pair) for pair in zip(*results))


def test_momentum_that_sums_steps_is_mxnets():
    model, rates, momentum, decay = network(), (0.1, 0.05, 0.025), 0.9, 0.1
    optimizer = build_optimizer(model, weight_decay=decay, momentum=momentum, momentum_convention="steps")
    weight = model[0].weight.detach().double().clone()
    sum_of_steps = torch.zeros_like(weight)
    for rate in rates:
        gradient = torch.sin(weight)
        for parameter in model.parameters():
            parameter.grad = torch.sin(parameter.detach())
        optimizer.update(rate)
        sum_of_steps = momentum * sum_of_steps - rate * (gradient + decay * weight)
        weight = weight + sum_of_steps
    torch.testing.assert_close(model[0].weight.detach().double(), weight, rtol=1e-6, atol=1e-7)
    saved = torch.from_numpy(optimizer.states()["state:0.weight:"])
    torch.testing.assert_close(saved.double(), sum_of_steps, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    "decay_on, exempt",
    [
        ("all", set()),
        ("weights", {"positions", "conv.bias", "norm.weight", "norm.bias", "prelu.weight", "table.weight"}),
    ],
)
def test_which_parameters_decay(decay_on, exempt):
    model = Positioned()
    before = copy.deepcopy(dict(model.named_parameters()))
    optimizer = build_optimizer(model, "adamw", 0.5, decay_on)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.update(0.1)
    stayed = {name for name, value in model.named_parameters() if torch.equal(value, before[name])}
    zeros = {"norm.bias"}  # which stay 0 with and without decay
    assert stayed - zeros == (exempt | {"proj.bias"}) - zeros


def test_the_settings_know_the_same_names():
    assert tuple(OPTIMIZERS) == default.OPTIMIZERS


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("torch.optim:Adamm", {}, "optimizer is 'torch.optim:Adamm', but torch.optim has no Adamm"),
        ("torch.nn:Linear", {}, "'torch.nn:Linear', which is no class derived from torch.optim.Optimizer"),
        ("adamw", {"beta": 1}, r"'adamw', but cannot be made with {'beta': 1}: .*beta"),
        ("adamw", {"eps": -1.0}, "'adamw', but cannot be made with {'eps': -1.0}: Invalid epsilon"),
    ],
)
def test_what_cannot_be_built_is_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        build_optimizer(network(), name, options=options)
