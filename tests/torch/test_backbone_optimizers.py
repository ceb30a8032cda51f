"""The optimizers of the backbone, compared with PyTorch's; weight decay and learning rates of parameters."""

import copy
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import default
from partial_fc.data.batch import Batch
from partial_fc.settings import declarations
from partial_fc_torch import CosFace, PartialFC, get_model
from partial_fc_torch.build import check_optimizer
from partial_fc_torch.engine import TorchEngine
from partial_fc_torch.optimizers import OPTIMIZERS, build_optimizer, freeze, frozen_modules, read_factors


class Positioned(nn.Module):
    """Has a norm, matrices, kernels, biases, slopes and positions."""

    def __init__(self):
        super().__init__()
        self.positions = nn.Parameter(torch.randn(1, 3, 4))
        self.conv, self.norm, self.prelu = nn.Conv2d(3, 4, 2), nn.LayerNorm(4), nn.PReLU(4)
        self.proj, self.table = nn.Linear(4, 4), nn.Embedding(3, 4)
        self.proj.bias.requires_grad = False

    def no_weight_decay(self):
        return {"table.weight"}


def trained(model, update, steps=4):
    """Returns the parameters after some steps, whose gradients are functions of the parameters."""
    for step in range(1, steps + 1):
        for number, parameter in enumerate(model.parameters()):
            parameter.grad = torch.sin(parameter.detach() * 7 + number + step)
        update(0.1 / step)
    return [parameter.detach() for parameter in model.parameters()]


def network():
    """Returns a network that also has a parameter without dimensions."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model.scale = nn.Parameter(torch.tensor(1.5))
    return model


@pytest.mark.parametrize(
    "name, arguments, expected",
    [
        ("sgd", {"momentum": 0.8}, lambda groups: torch.optim.SGD(groups, momentum=0.8, weight_decay=0.1)),
        (
            "sgd",
            {"momentum": 0.8, "options": {"nesterov": True}},
            lambda groups: torch.optim.SGD(groups, momentum=0.8, weight_decay=0.1, nesterov=True),
        ),
        ("adamw", {"momentum": 0.8}, lambda groups: torch.optim.AdamW(groups, weight_decay=0.1)),
        (
            "adamw",
            {"options": {"betas": (0.5, 0.6), "weight_decay": 0.2}},
            lambda groups: torch.optim.AdamW(groups, betas=(0.5, 0.6), weight_decay=0.2),
        ),
        ("torch.optim:Rprop", {}, lambda groups: torch.optim.Rprop(groups)),
    ],
)
def test_updates_are_those_of_pytorch(name, arguments, expected):
    ours, theirs = network(), network()
    optimizer = expected(theirs.parameters())

    def set_rate_and_step(rate):
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()

    results = trained(ours, build_optimizer(ours, name, 0.1, **arguments).update), trained(theirs, set_rate_and_step)
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
    resumed = build_optimizer(copy.deepcopy(model), momentum=momentum, momentum_convention="steps")
    resumed.restore(optimizer.states())
    assert all(np.array_equal(array, resumed.states()[name]) for name, array in optimizer.states().items())


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
    zeros = {"norm.bias"}  # stays 0 with and without decay
    assert stayed - zeros == (exempt | {"proj.bias"}) - zeros


def test_each_part_has_its_learning_rate_and_frozen_parts_stay():
    model, factors = Positioned(), read_factors(["conv=0", "proj=0.5", "proj.weight=0.25", "norm=0"])
    freeze(model, factors)
    before = copy.deepcopy(dict(model.named_parameters()))
    optimizer = build_optimizer(model, "sgd", 0.0, momentum=0.0, factors=factors)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.update(0.1)
    moved = {name: float((before[name] - value).detach().abs().max()) for name, value in model.named_parameters()}
    expected = {name: 0.1 for name in moved} | dict.fromkeys(
        ("conv.weight", "conv.bias", "norm.weight", "norm.bias", "proj.bias"), 0.0
    )
    assert moved == pytest.approx(expected | {"proj.weight": 0.025}, abs=1e-6)
    assert frozen_modules(model, factors) == [model.conv, model.norm]
    nested = nn.ModuleDict({"a": nn.ModuleDict({"b": nn.BatchNorm1d(2), "c": nn.BatchNorm1d(2)})})
    assert frozen_modules(nested, read_factors(["a=0", "a.c=0.1"])) == [nested["a"]["b"]]  # a contains a trained part


def partly(model, name, parts):
    """Returns the optimizer of the parts that are not frozen."""
    factors = read_factors(parts)
    freeze(model, factors)
    return build_optimizer(model, name, factors=factors, **({"momentum": 0.9} if name == "sgd" else {}))


def update(model, optimizer):
    for parameter in optimizer.parameters:
        parameter.grad = torch.sin(parameter.detach() * 7)
    optimizer.update(0.1)


@pytest.mark.parametrize("name", ["sgd", "adamw", "torch.optim:Adagrad"])
@pytest.mark.parametrize(
    "before, now, thawed",
    [
        (["0=0"], [], ["0.weight", "0.bias"]),
        (["0=0", "1=0"], ["2=0"], ["0.weight", "0.bias", "1.weight", "1.bias"]),
        ([], ["0=0"], []),
    ],
)
def test_a_part_that_was_frozen_resumes_with_new_states(name, before, now, thawed):
    """The other parts continue with their states."""
    models = [network() for _ in range(3)]
    first, resumed, fresh = (partly(model, name, parts) for model, parts in zip(models, (before, now, now)))
    for _ in range(3):
        update(models[0], first)
    for model in models[1:]:
        model.load_state_dict(models[0].state_dict())
    assert resumed.restore(first.states()) == thawed
    for model, optimizer in zip(models, (first, resumed, fresh)):
        update(model, optimizer)
    for state, value in resumed.states().items():
        expected = fresh if state.split(":")[1] in thawed else first
        np.testing.assert_allclose(value, expected.states()[state], rtol=1e-6, err_msg=state)


def test_a_part_does_not_contain_one_whose_name_begins_like_it():
    blocks = nn.ModuleDict({str(number): nn.BatchNorm1d(2) for number in (0, 1, 10)})
    model, factors = nn.ModuleDict({"blocks": blocks, "blocks_1": nn.BatchNorm1d(2)}), read_factors(["blocks.1=0"])
    freeze(model, factors)
    trained = {name for name, value in model.named_parameters() if value.requires_grad}
    assert {name.rpartition(".")[0] for name in trained} == {"blocks.0", "blocks.10", "blocks_1"}
    assert frozen_modules(model, factors) == [blocks["1"]]


def test_running_statistics_of_frozen_parts_stay():
    model = get_model("small", num_features=8)
    factors = read_factors(["conv1=0", "bn1=0"])
    freeze(model, factors)
    layer = PartialFC(margin_softmax=CosFace(), num_classes=6, embedding_size=8, device="cpu")
    engine = TorchEngine(
        model,
        layer,
        lambda update: (0.1, 0.1),
        optimizer=partial(build_optimizer, factors=factors),
        frozen=frozen_modules(model, factors),
    )
    before = {name: value.clone() for name, value in model.state_dict().items()}
    engine.step(Batch(torch.randint(0, 255, (4, 3, 112, 112), dtype=torch.uint8), np.arange(4)))
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert any("running_mean" in name for name in changed)
    assert not any(name.startswith(("conv1.", "bn1.")) for name in changed)


@pytest.mark.parametrize(
    "part_rates, message",
    [
        ("layer9=0", "'layer9', .* did you mean"),
        ("conv", "must be like layer1=0.1"),
        ("conv=-1", "must be like"),
        ("conv=nan", "must be like"),
        ("conv=1,conv=0", "conv twice"),
        (",".join(f"{name}=0" for name, _ in Positioned().named_children()) + ",positions=0", "no parameter"),
    ],
)
def test_unusable_part_rates_are_refused(part_rates, message):
    with pytest.raises(ValueError, match=message):
        freeze(Positioned(), read_factors(part_rates.split(",")))


def test_the_settings_know_the_same_names():
    assert tuple(OPTIMIZERS) == declarations.OPTIMIZERS


class Listing(torch.optim.SGD):
    """Keeps a state that a checkpoint cannot contain."""

    def step(self, closure=None):
        super().step(closure)
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["history"] = []


@pytest.mark.parametrize(
    "name, message", [("torch.optim:LBFGS", "closure"), (f"{__name__}:Listing", "keeps history as list")]
)
def test_an_optimizer_that_fails_in_an_update_is_refused_at_the_start(name, message):
    settings = partial(default.generate_config, trainer="torch")
    with pytest.raises(ValueError, match=f"'{name}', which fails in an update: .*{message}"):
        check_optimizer(settings(changes={"optimizer": name}))
    check_optimizer(settings(changes={"optimizer": "adamw", "optimizer_options": "capturable=True"}))  # on GPUs


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("torch.optim:Adamm", {}, "torch.optim has no Adamm"),
        ("torch.nn:Linear", {}, "name a subclass of torch.optim"),
        ("adamw", {"beta": 1}, "cannot be created with {'beta': 1}"),
        ("adamw", {"eps": -1.0}, "eps is -1.0"),
        ("torch.optim:RAdam", {"betas": (0.9, 2)}, "betas is 2.0"),
        ("sgd", {"momentum": 10**400}, "momentum is inf"),
        ("sgd", {"lr": 5.0}, "has lr: remove it"),
    ],
)
def test_unusable_optimizers_are_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        build_optimizer(network(), name, options=options)
