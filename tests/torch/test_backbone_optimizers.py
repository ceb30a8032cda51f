"""The optimizers of the backbone against PyTorch's, and which parameters have weight decay."""

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
    zeros = {"norm.bias"}  # which stay 0 with and without decay
    assert stayed - zeros == (exempt | {"proj.bias"}) - zeros


def test_parts_have_rates_of_their_own_and_frozen_ones_stay():
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
    assert frozen_modules(nested, read_factors(["a=0", "a.c=0.1"])) == [nested["a"]["b"]]  # a contains what trains


def partly(model, name, parts):
    """The optimizer of what the parts do not freeze; and what it updates."""
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
    """The other parts go on with theirs."""
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


@pytest.mark.parametrize("other", ["sgd", "adamw"])
def test_states_of_another_optimizer_are_refused_where_parts_are_thawed(other):
    saved = partly(network(), "torch.optim:Adagrad", ["0=0", "1=0"])
    with pytest.raises(ValueError, match="it holds step, sum of"):
        partly(network(), other, ["2=0"]).restore(saved.states())


@pytest.mark.parametrize(
    "factors, trained, still",
    [
        (["blocks.1=0"], {"blocks.0", "blocks.10", "blocks", "blocks_1"}, {"blocks.1"}),
        (["blocks.10=0"], {"blocks.0", "blocks.1", "blocks", "blocks_1"}, {"blocks.10"}),
        (["blocks=0", "blocks.1=0.5"], {"blocks.1", "blocks", "blocks_1"}, {"blocks.0", "blocks.10"}),
    ],
)
def test_a_part_is_not_another_one_whose_name_begins_like_it(factors, trained, still):
    blocks = nn.ModuleDict({str(number): nn.BatchNorm1d(2) for number in (0, 1, 10)})
    model, factors = nn.ModuleDict({"blocks": blocks, "blocks_1": nn.BatchNorm1d(2)}), read_factors(factors)
    freeze(model, factors)
    groups = build_optimizer(model, factors=factors).optimizer.param_groups
    rates = {id(parameter): group["rate_factor"] for group in groups for parameter in group["params"]}
    for name in (trained | still) - {"blocks"}:
        expected = None if name in still else factors.get(name, 1.0)
        assert rates.get(id(model.get_submodule(name).weight)) == expected, name
    assert frozen_modules(model, factors) == [model.get_submodule(name) for name in sorted(still)]


def test_running_statistics_of_frozen_parts_stay():
    """Also where other parts train; the parts resume by the same settings."""
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
    "given, message",
    [
        ("layer9=0", "'layer9', which the backbone does not have: did you mean"),
        ("conv", "must be like layer1=0.1"),
        ("conv=-1", "must be like"),
        ("conv=nan", "must be like"),
        ("conv=1,conv=0", "conv twice"),
    ],
)
def test_parts_that_are_not_there_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        freeze(Positioned(), read_factors(given.split(",")))


def test_the_settings_know_the_same_names():
    assert tuple(OPTIMIZERS) == declarations.OPTIMIZERS


class Listing(torch.optim.SGD):
    """Keeps what no checkpoint holds."""

    def step(self, closure=None):
        super().step(closure)
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["history"] = []


@pytest.mark.parametrize(
    "name, message", [("torch.optim:LBFGS", "TypeError: .*closure"), (f"{__name__}:Listing", "keeps history as list")]
)
def test_an_optimizer_that_fails_in_an_update_is_refused_at_the_start(name, message):
    of = partial(default.generate_config, trainer="torch")
    with pytest.raises(ValueError, match=f"optimizer is '{name}', which fails in an update: .*{message}"):
        check_optimizer(of(changes={"optimizer": name}))
    check_optimizer(of(changes={"optimizer": "adamw", "optimizer_options": "capturable=True"}))  # on GPUs


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("torch.optim:Adamm", {}, "optimizer is 'torch.optim:Adamm', but torch.optim has no Adamm"),
        ("torch.nn:Linear", {}, "'torch.nn:Linear', which is .*: name a subclass of torch.optim"),
        ("adamw", {"beta": 1}, r"'adamw', but cannot be made with {'beta': 1}: .*beta"),
        ("adamw", {"eps": -1.0}, "'adamw', but cannot be made with {'eps': -1.0}: eps is -1.0, but must be above 0"),
        ("torch.optim:RAdam", {"betas": (0.9, 2)}, "betas is 2.0, but must be at least 0 and below 1"),
        ("sgd", {"momentum": 10**400}, "momentum is inf, but must be a finite number"),
        ("sgd", {"lr": 5.0}, "has lr: remove it"),
    ],
)
def test_what_cannot_be_built_is_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        build_optimizer(network(), name, options=options)
