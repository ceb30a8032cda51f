"""Margins called with cosines, as by users of arcface_torch; functions and objects as margins; states of margins."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import oracle
from partial_fc.layer.margins import MARGINS as NAMES
from partial_fc_tools.planner.case import SLOPED
from partial_fc_torch import (
    AdaFace,
    ArcFace,
    CombinedMarginLoss,
    CosFace,
    CurricularFace,
    MagFace,
    PartialFC,
    PartialFC_V2,
)
from partial_fc_torch.layer.margins import MARGINS, as_margin, margin_named

COSINES = np.random.default_rng(0).uniform(-1, 1, (4, 6))
LABELS = np.array([2, -1, 5, 0])


@pytest.mark.parametrize(
    "loss, margins, scale",
    [
        (ArcFace(), (1, 0.5, 0), 64),
        (ArcFace(s=30, margin=0.3), (1, 0.3, 0), 30),
        (CosFace(), (1, 0, 0.4), 64),
        (CosFace(s=30, m=0.2), (1, 0, 0.2), 30),
        (CombinedMarginLoss(64, 1.0, 0.3, 0.2, 0), (1, 0.3, 0.2), 64),
        (CombinedMarginLoss(16, 2.0, 1.0, 0.1), (2, 1, 0.1), 16),
    ],
)
@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_logits_have_the_margin_at_the_targets_alone(loss, margins, scale, shape):
    cosines = torch.from_numpy(COSINES)
    logits = loss(cosines, torch.from_numpy(LABELS).reshape(shape))
    expected = scale * COSINES
    m1, m2, m3 = margins
    for row, label in enumerate(LABELS):
        if label >= 0:
            expected[row, label] = scale * (oracle.psi(m1 * math.acos(COSINES[row, label]) + m2) - m3)
    np.testing.assert_allclose(logits, expected, rtol=1e-12)
    np.testing.assert_array_equal(cosines, COSINES)


@pytest.mark.parametrize("loss", [ArcFace(4.0), CosFace(4.0), CombinedMarginLoss(4.0, 0.9, 0.4, 0.15)])
def test_gradcheck(loss):
    cosines = torch.from_numpy(COSINES).requires_grad_()
    assert torch.autograd.gradcheck(lambda logits: loss(logits, torch.from_numpy(LABELS)), (cosines,))


def test_straight_through_changes_only_the_slope():
    cosines, labels = torch.from_numpy(COSINES).requires_grad_(), torch.from_numpy(LABELS)
    logits = ArcFace(4.0, straight_through=True)(cosines, labels)
    assert torch.equal(logits, ArcFace(4.0)(cosines, labels))
    logits.sum().backward()
    np.testing.assert_array_equal(cosines.grad, np.full_like(COSINES, 4.0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_gradients_are_finite_where_feature_and_center_coincide(dtype):
    cosines = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=dtype, requires_grad=True)
    logits = ArcFace()(cosines, torch.tensor([0, 0]))
    logits.float().sum().backward()
    assert logits.dtype == dtype and torch.isfinite(cosines.grad).all()


def test_negatives_above_the_threshold_are_left_out():
    cosines = torch.tensor([[0.9, 0.3, 0.6], [0.7, 0.2, 0.1]], dtype=torch.float64, requires_grad=True)
    logits = CombinedMarginLoss(4.0, 1.0, 0.0, 0.4, 0.5)(cosines, torch.tensor([0, -1]))
    torch.nn.functional.cross_entropy(logits[:1], torch.tensor([0])).backward()
    lowest = torch.finfo(torch.float64).min
    torch.testing.assert_close(logits, torch.tensor([[2.0, 1.2, lowest], [lowest, 0.8, 0.4]], dtype=torch.float64))
    assert cosines.grad[0, 0] == -cosines.grad[0, 1] != 0 and cosines.grad[0, 2] == 0


def arcface_by_autograd(cosine, norms, labels):
    return 8 * torch.cos(torch.acos(cosine) + 0.5)


arcface_by_autograd.scale = 8


def magface_by_autograd(cosine, norms, labels):
    return torch.cos(torch.acos(cosine) + 0.45 + 0.35 * (norms.clip(1.6, 2.2) - 1.6) / 0.6)


ARCFACE_TORCH = SimpleNamespace(s=8, m1=1.0, m2=0.5, m3=0.0, interclass_filtering_threshold=0.3)


@pytest.mark.parametrize(
    "margin, expected",
    [
        (arcface_by_autograd, ArcFace(8.0)),
        (margin_named("test_margin_objects:magface_by_autograd", 1.0, {}), MagFace(1.0, 1.6, 2.2, lambda_g=0.0)),
        (ARCFACE_TORCH, CombinedMarginLoss(8.0, 1.0, 0.5, 0.0, 0.3, straight_through=True)),
    ],
)
def test_functions_and_objects_of_others_are_margins(margin, expected):
    """Losses and gradients equal those of the built-in margin, for angles below pi."""
    noise = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    results = []
    for each in (margin, expected):
        layer = PartialFC_V2(each, 4, 9).double()
        rows = (100 * layer.weight.detach()[:6] + 0.5 * noise).requires_grad_()
        loss = layer(rows, torch.arange(6))
        loss.backward()
        results.append((loss, rows.grad, layer.weight.grad))
    torch.testing.assert_close(*results)


def test_the_planner_knows_the_margins():
    assert tuple(MARGINS) == NAMES
    assert {name for name in MARGINS if MARGINS[name].slopes_negatives} == SLOPED.keys()
    bytes_of = {name: 8 * each.needs_all_targets for name, each in MARGINS.items()} | {"inter_topk": 4 * (5 + 1)}
    assert {name: SLOPED.get(name, ("", 0))[1] for name in MARGINS} == bytes_of


def test_margins_by_name():
    assert {type(margin_named(name, 8.0, {"m": 0.3})) for name in ("adaface", "curricularface", "inter_topk")} < set(
        MARGINS.values()
    )
    magface = margin_named("partial_fc_torch.layer.margins.magface:MagFace", 8.0, {"l_a": 1, "u_a": 2})
    assert isinstance(magface, MagFace) and (magface.scale, magface.l_a) == (8.0, 1)
    by_function = margin_named("test_margin_objects:with_option", 8.0, {"m": 0.3})
    cosine = torch.tensor([0.5], dtype=torch.float64)
    torch.testing.assert_close(by_function.targets(cosine, cosine, cosine).value, torch.full_like(cosine, 0.2))


def with_option(cosine, norms, labels, m=0.1):
    return 8 * (cosine - m)


COMBINED = {"m1": 1, "m2": 0, "m3": 0}


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("adaface", {"m1": 1}, "cannot be created with {.*m1"),
        ("magface", {"l_a": 200}, "needs l_a < u_a"),
        ("magface", {"lambda_g": -5}, "lambda_g is -5.0"),
        ("adaface", {"t_alpha": 2}, "t_alpha is 2.0"),
        *(("curricularface", {"m": bad}, "m is ") for bad in (-1, 1e300, math.nan, "a")),
        *(("inter_topk", {"k": bad}, "k is ") for bad in (0, 2.5, True)),
        ("combined", {**COMBINED, "m3": math.inf}, "m3 is inf"),
        *(("combined", {**COMBINED, "interclass_filtering_threshold": bad}, f"is {bad}") for bad in (-0.1, 1.0)),
        ("arcfase", {}, "'arcfase', but must be a known name"),
        ("nowhere:own", {}, "nowhere cannot be imported"),
    ],
)
def test_unusable_names_and_options_are_refused(name, options, message):
    with pytest.raises(ValueError, match=message) as error:
        margin_named(name, 8.0, options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "function, message",
    [
        (lambda cosine, norms, labels: cosine[:1], r"returns \(1,\) target logits"),
        (lambda cosine, norms, labels: cosine @ labels, "RuntimeError"),
    ],
)
def test_a_function_that_fails_is_refused_before_the_first_step(function, message):
    with pytest.raises(ValueError, match=f"cannot compute the target logits .*{message}"):
        PartialFC_V2(function, 4, 9)


class Counting(torch.nn.Module):
    """A user's margin that counts its calls."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, cosine, norms, labels):
        self.calls += 1
        return 64 * cosine


@pytest.mark.parametrize("make", [AdaFace, CurricularFace, Counting])
def test_only_a_step_changes_the_state(make):
    """The trial of a new margin and a refused batch do not, nor does our margins' evaluation mode."""
    layer = PartialFC(margin_softmax=make(), num_classes=9, embedding_size=4, device="cpu")
    layer.learning_rate, features, labels = 0.1, torch.ones(6, 4), torch.arange(6)

    def state():
        return {name: value.item() for name, value in layer.state_dict().items() if name.startswith("margin.")}

    start = state()
    assert start == {f"margin.{name}": value.item() for name, value in as_margin(make()).state_dict().items()}
    with pytest.raises(FloatingPointError):
        layer.step(torch.full_like(features, torch.nan), labels)
    with pytest.raises(ValueError):
        layer.step(features, labels + 9)
    assert state() == start
    layer.step(features, labels)
    once = state()
    assert all(once[name] != start[name] for name in start)
    fresh = PartialFC(margin_softmax=make(), num_classes=9, embedding_size=4, device="cpu")
    fresh.learning_rate = 0.1
    fresh.step(features, labels)
    fresh.weight.copy_(layer.weight)
    for size in (4, 6):  # another batch size repeats the step
        layer.step(features[:size], labels[:size])
    layer.load_state_dict(fresh.state_dict())
    assert state() == once
    if make is not Counting:
        layer.eval().step(features, labels)
        assert state() == once
    else:
        layer.step(features[:3], labels[:3])
        assert state() == {"margin.function.calls": 2}


class Smoothed(torch.nn.Module):
    """A user's margin with a value computed from its option, and a state."""

    def __init__(self, s, m):
        super().__init__()
        self.scale, self.half = s, m / 2
        self.register_buffer("mean", torch.tensor(0.0, dtype=torch.float64))

    def forward(self, cosine, norms, labels):
        self.mean += 0.5 * (cosine.detach().mean() - self.mean)
        return self.scale * (cosine - self.half - self.mean)


@pytest.mark.parametrize(
    "name, option",
    [
        *(("adaface", "m"), ("curricularface", "m"), ("inter_topk", "m"), ("magface", "l_m"), ("combined", "m3")),
        *(("test_margin_objects:with_option", "m"), ("test_margin_objects:Smoothed", "m")),
    ],
)
def test_a_margin_takes_the_options_of_another_and_keeps_its_state(name, option):
    fixed = {"m1": 1.0, "m2": 0.3} if name == "combined" else {}
    before, after = (as_margin(margin_named(name, 8.0, {**fixed, option: value})) for value in (0.1, 0.3))
    batch = torch.tensor([0.5, 0.1, -0.2]).double(), torch.tensor([10.0, 20.0, 30.0]).double(), torch.tensor([0, 1, 2])
    before.targets(*batch)
    after.load_state_dict(before.state_dict())
    before.take_options(as_margin(margin_named(name, 8.0, {**fixed, option: 0.3})))
    torch.testing.assert_close(before.targets(*batch), after.targets(*batch), rtol=0, atol=0)
    assert str(before.state_dict()) == str(after.state_dict())


def test_adaface_accepts_a_batch_of_one():
    margin, one = AdaFace(), torch.tensor([0.5], dtype=torch.float64)
    assert torch.isfinite(margin.targets(one, one, torch.tensor([0])).value)
    assert margin.norm_std.item() == pytest.approx(99.0)


@pytest.mark.parametrize(
    "make, expected",
    [
        (
            lambda: AdaFace(8.0, m=0.5, h=0.9, t_alpha=0.5),
            lambda *batch: oracle.AdaFace(*batch, 20, 100, 0.5, 0.9, 0.5),
        ),
        (lambda: MagFace(8.0), lambda *batch: oracle.MagFace(*batch, 10.0, 110.0)),
        (lambda: CurricularFace(8.0), lambda *batch: oracle.CurricularFace(*batch, 0.0)),
    ],
)
def test_targets_from_0_to_pi_at_all_norms(make, expected):
    """Includes angles and norms beyond the ends of the margins' intervals."""
    cosines, norms = np.tile(np.cos(np.linspace(0.01, math.pi - 0.01, 40)), 5), np.repeat([0, 1e-4, 9, 90, 500], 40)
    features, labels = norms[:, None] * np.stack([cosines, np.sqrt(1 - cosines**2)], axis=1), np.zeros(200, int)
    targets = make().targets(*map(torch.from_numpy, (cosines, norms.astype(float), labels)))
    margin = expected(features + 1e-12, np.array([[1.0, 0.0]]), labels, [0])

    def value(shift=0.0, longer=0.0, part=0):
        rows = enumerate(zip(cosines, norms))
        return np.array([margin.target(row, cosine + shift, norm + longer)[part] for row, (cosine, norm) in rows])

    def derivative(part=0, **step):
        ((name, size),) = step.items()
        return (value(**{name: size}, part=part) - value(**{name: -size}, part=part)) / (2 * size)

    np.testing.assert_allclose(targets.value, value(), atol=1e-9)
    slope = derivative(shift=1e-7)
    wrong = np.abs(targets.by_cosine.numpy() - slope) > 1e-4 * (1 + slope)
    assert wrong.sum() <= 2  # next to the ends of AdaFace's angles
    if targets.penalty is not None:
        np.testing.assert_allclose(targets.penalty, value(part=1), rtol=1e-12)
        np.testing.assert_allclose(targets.by_norm, derivative(longer=1e-5), atol=1e-6)
        np.testing.assert_allclose(targets.penalty_by_norm, derivative(longer=1e-5, part=1), atol=1e-6)
