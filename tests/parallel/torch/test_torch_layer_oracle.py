"""Loss, feature gradient and center update of both modules against the float64 oracle."""

import functools
import pickle

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch_layer import FUSED, LOCAL, LR, MM, RANK, SIZE, E, all_ranks, build, build_v2, random_batch

import interpreted
import oracle
from oracle import MARGINS
from partial_fc.layer.sharding import shard_of
from partial_fc_torch import AdaFace, CurricularFace, MagFace
from partial_fc_torch.collectives import default_collectives

aten = torch.ops.aten

SCALE = 8.0  # small enough that the oracle's central differences keep eight digits

# Name -> (margin with a state of earlier steps, the same of the oracle for a batch). The norms, of four normal numbers,
# are inside and outside of their intervals.
STATEFUL = {
    "adaface": (lambda: with_state(AdaFace(SCALE), norm_mean=2.0, norm_std=0.4), (oracle.AdaFace, (2.0, 0.4))),
    "curricularface": (lambda: with_state(CurricularFace(SCALE), t=0.3), (oracle.CurricularFace, (0.3,))),
    "magface": (lambda: MagFace(SCALE, 1.6, 2.2), (oracle.MagFace, (1.6, 2.2))),
}

# float32 against float64: the longest sums have 31 terms of order 1, and a target angle near 0 or pi amplifies a
# rounding error of 6e-8 by at most 1 / sin(theta), below 100 here.
TOLERANCE = dict(rtol=2e-4, atol=2e-5)
CACHED_OR_NOT = [{}, {"tile_classes": 3, "logits_cache_mb": 0}, FUSED]
SHARDS = [(12, 1.0), (7, 1.0), (2, 1.0), (18, 0.5), (31, 0.3)]  # with 3 ranks the last one has none of 2 classes


def with_state(margin, **state):
    """Sets the buffers of a margin, and returns it."""
    for name, value in state.items():
        getattr(margin, name).fill_(value)
    return margin


def margins_of(name):
    """Returns what `build` takes, and what Expected does."""
    if name in MARGINS:
        return MARGINS[name], MARGINS[name]
    make, expected = STATEFUL[name]
    return make(), expected


def record_samples(layer):
    """Returns a list that receives the global classes of each later step, those of all ranks."""
    samples, sample = [], layer.sample

    def recorded(labels):
        index = sample(labels)
        samples.append(all_ranks(index + layer.class_start))
        return index

    layer.sample = recorded
    return samples


class Expected:
    """The oracle's numbers of a step: mean loss and gradients by features and centers."""

    def __init__(self, features, centers, labels, classes, margins, threshold=0.0, counts=None):
        features, centers = features.astype(np.float64), centers.astype(np.float64)
        if isinstance(margins[0], type):
            margins = margins[0](features.copy(), centers.copy(), labels, classes, *margins[1])
        self.margins = margins
        arguments = features, centers, labels, classes.tolist(), margins, SCALE, threshold, counts
        self.centers, self.loss = centers, oracle.mean_loss(*arguments)
        self.d_features, self.d_centers = oracle.gradients(*arguments)


KNOWN: dict = {}


def expected_of(*arguments):
    """`Expected`, computed once for the cases that differ in their tiles alone."""
    key = pickle.dumps(arguments)
    if key not in KNOWN:
        KNOWN[key] = Expected(*arguments)
    return KNOWN[key]


@pytest.mark.parametrize(
    "name, shard, tiling",
    [
        (name, shard, tiling)
        for name in (*MARGINS, *STATEFUL)
        for shard in SHARDS
        for tiling in (*CACHED_OR_NOT, {"tile_classes": 3})
        if tiling is not FUSED or name == "arcface" or shard == SHARDS[-1]  # the interpreter is slow
    ],
)
def test_partial_fc_matches_the_oracle(name, shard, tiling):
    classes, ratio = shard
    margin, expected_margin = margins_of(name)
    layer = build(classes, ratio, margin, SCALE, **tiling)
    samples = record_samples(layer)
    features, labels = random_batch(classes)
    before = all_ranks(layer.weight)
    gradient, loss = layer.step(torch.from_numpy(features[LOCAL]), torch.from_numpy(labels[LOCAL]))
    gradient, after, mom = all_ranks(gradient / SIZE), all_ranks(layer.weight), all_ranks(layer.weight_mom)
    states = default_collectives.gather_object("margin", {k: v.item() for k, v in layer.margin.state_dict().items()})
    if RANK != 0:
        return  # the oracle is slow, and every rank has the same numbers
    assert set(labels) <= set(samples[0])
    expected = expected_of(features, before, labels, samples[0], expected_margin)
    np.testing.assert_allclose(loss, expected.loss, rtol=1e-5)
    np.testing.assert_allclose(gradient, expected.d_features, **TOLERANCE)
    weight, steps = oracle.sgd_momentum(expected.centers, np.zeros_like(before, np.float64), expected.d_centers, LR)
    sampled = np.isin(np.arange(classes), samples[0])
    np.testing.assert_allclose(after[sampled], weight[sampled], **TOLERANCE)
    np.testing.assert_allclose(-LR * mom[sampled], steps[sampled], **TOLERANCE)  # mom sums gradients
    np.testing.assert_array_equal(after[~sampled], before[~sampled])
    assert not mom[~sampled].any()
    assert all(state == states[0] for state in states)
    assert states[0] == pytest.approx(getattr(expected.margins, "state", {}), rel=1e-5)


def step_of(layer, factor=1, between=lambda: None):
    """A step of PartialFC_V2, with a call between its passes.

    Returns: loss, gradients by features and centers, features, centers, labels and samples of all ranks.
    """
    samples = [] if layer.sampling_correction else record_samples(layer)
    features, labels = random_batch(layer.num_classes)
    local = torch.from_numpy(features[LOCAL]).requires_grad_()
    loss = layer(local, torch.from_numpy(labels[LOCAL])[:, None])
    between()
    (factor * loss).backward()
    gradients = all_ranks(local.grad / SIZE / factor), all_ranks(layer.weight.grad / factor)
    sampled = samples[0] if samples else np.flatnonzero(gradients[1].any(axis=1))
    return loss.item(), gradients, features, all_ranks(layer.weight), labels, sampled


@pytest.mark.parametrize("name", STATEFUL)
@pytest.mark.parametrize("ratio", [1.0, 0.3])
@pytest.mark.parametrize("tiling", CACHED_OR_NOT)
def test_a_margin_with_a_dense_gradient_matches_the_oracle(name, ratio, tiling):
    """Another forward pass, which changes the state, comes before the backward pass."""
    margin, expected = margins_of(name)
    layer = build_v2(31, ratio, margin, SCALE, **tiling)
    other, labels = random_batch(31, seed=1)
    forward = functools.partial(layer, torch.from_numpy(9 * other[LOCAL]), torch.from_numpy(labels[LOCAL]))
    assert_expected(step_of(layer, factor=2, between=forward), expected)


def assert_expected(found, margins, threshold=0.0, counts=None):
    loss, (d_features, d_centers), *inputs, classes = found
    if RANK != 0:
        return
    expected = expected_of(*inputs, classes, margins, threshold, counts)
    np.testing.assert_allclose(loss, expected.loss, rtol=1e-5)
    np.testing.assert_allclose(d_features, expected.d_features, **TOLERANCE)
    np.testing.assert_allclose(d_centers, expected.d_centers, rtol=2e-4, atol=2e-4)  # divided by norms of 0.02
    assert not d_centers[~np.isin(np.arange(len(d_centers)), classes)].any()


@pytest.mark.parametrize("name, tiling", [*((name, {"tile_classes": 3}) for name in MARGINS), ("arcface", MM)])
@pytest.mark.parametrize("classes, ratio", SHARDS)
@pytest.mark.parametrize("threshold", [0.0, 0.3])
def test_partial_fc_v2_matches_the_oracle(name, classes, ratio, threshold, tiling):
    layer = build_v2(classes, ratio, MARGINS[name], SCALE, threshold=threshold, **tiling)
    assert_expected(step_of(layer, factor=2), MARGINS[name], threshold)  # a factor as that of a loss scale


@pytest.mark.parametrize("name", ["arcface", "combined", *STATEFUL])
@pytest.mark.parametrize("classes, ratio", [(18, 0.5), (31, 0.5), (12, 1.0)])
@pytest.mark.parametrize("tiling", CACHED_OR_NOT)
def test_sampled_negatives_count_for_all(name, classes, ratio, tiling):
    margin, expected = margins_of(name)
    found = step_of(build_v2(classes, ratio, margin, SCALE, sampling_correction=True, **tiling))
    labels, sampled = found[-2:]
    counts = oracle.negative_counts(sampled, labels, [shard_of(classes, rank, SIZE) for rank in range(SIZE)])
    assert set(labels) < set(sampled) and (max(counts.values()) > 1.5) == (ratio < 1)
    assert_expected(found, expected, counts=counts)


@pytest.mark.world_size(1)
@pytest.mark.parametrize("corrected", [True, False])
def test_the_sum_over_corrected_samples_is_unbiased(corrected):
    """exp(loss) is the sum over all classes, divided by the target's exponential, if all rows are the same."""

    def ratio_of_sums(layer):
        with torch.no_grad():
            return np.exp(layer(torch.ones(2, E), torch.full((2,), 5)).item())

    full = ratio_of_sums(build_v2(30))
    layer = build_v2(30, 0.4, sampling_correction=corrected)
    sums = np.array([ratio_of_sums(layer) for _ in range(400)])
    errors = abs(sums.mean() - full) / (sums.std() / np.sqrt(len(sums)))
    assert (errors < 4) == corrected and sums.std() > 0.01 * full


def test_a_correction_that_has_no_sense_is_refused():
    with pytest.raises(ValueError, match="sampling_correction weights sampled negatives, but with a sample ratio of 0"):
        build(18, 0, sampling_correction=True)
    layer = build(18, 0.5, sampling_correction=True)
    layer.sample = lambda labels: torch.arange(layer.num_local)
    with pytest.raises(ValueError, match=r"sampling_correction .* your own sample\(\)"):
        layer.step(*map(torch.from_numpy, random_batch(18)))


@pytest.mark.parametrize("tiling", CACHED_OR_NOT)
def test_the_classes_of_the_batch_alone(tiling):
    layer = build_v2(31, 0, MARGINS["arcface"], SCALE, **tiling)
    found = step_of(layer)
    assert sorted(found[-1]) == sorted(set(found[-2])), "classes are the labels"
    assert_expected(found, MARGINS["arcface"])


def test_the_rate_may_change_between_two_steps():
    """A step after a change samples as that of a layer which has had the new rate before."""
    changed, expected = build(31, 1.0), build(31, 0.5)
    features, labels = random_batch(31)
    batch = torch.from_numpy(features[LOCAL]), torch.from_numpy(labels[LOCAL])
    for rate in (0.3, 0.0, 0.5):
        changed.sample_rate = rate
        changed.step(*batch)
    expected.load_state_dict(changed.state_dict())
    expected.sampler.restore(changed.sampler.state())
    assert changed.sample_rate == 0.5
    for layer in (changed, expected):
        layer.step(*batch)
    np.testing.assert_array_equal(changed.weight.detach(), expected.weight.detach())
    with pytest.raises(ValueError, match="sample_rate must be at least 0 and at most 1, not 1.5"):
        changed.sample_rate = 1.5


@pytest.mark.parametrize("name", ["arcface", *STATEFUL])
@pytest.mark.parametrize("tiling", CACHED_OR_NOT)
def test_rows_without_their_positive_are_left_out(name, tiling):
    margin, expected = margins_of(name)
    layer = build_v2(31, 0.3, margin, SCALE, **tiling)
    layer.requires_positives = False
    layer.sample = lambda labels: torch.arange(0, layer.num_local, 2)
    *_, labels, classes = found = step_of(layer)
    assert 0 < np.isin(labels, classes).sum() < len(labels)
    assert_expected(found, expected)


@pytest.mark.parametrize("tiling", [{"tile_classes": 1}, MM])
def test_all_negatives_may_be_left_out(tiling):
    """Of some tiles, and of all ranks for rows that equal their centers: the loss of these is 0."""
    layer = build_v2(6, 1.0, (1.0, 0.0, 0.0), SCALE, threshold=0.5, **tiling)
    layer.weight.data.copy_(torch.ones(layer.weight.shape))
    local = torch.ones(len(range(6)[LOCAL]), E, requires_grad=True)
    loss = layer(local, torch.arange(6)[LOCAL])
    loss.backward()
    assert abs(loss.item()) < 1e-6 and local.grad.abs().max() < 1e-6 and layer.weight.grad.abs().max() < 1e-6


class EmulatedTF32(TorchDispatchMode):
    """Cuts the operands of float32 products to 10 bits of mantissa where a GPU would compute them in TF32."""

    products = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function in (aten.mm.default, aten.addmm_.default) and torch.backends.cuda.matmul.allow_tf32:
            self.products += 1
            *into, left, right = args
            args = (*into, *((each.view(torch.int32) & ~0x1FFF).view(torch.float32) for each in (left, right)))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("classes, ratio", [(12, 1.0), (31, 0.3)])
@pytest.mark.parametrize("tiling", CACHED_OR_NOT[:2])
def test_tf32_keeps_its_error_bounds(classes, ratio, tiling):
    with EmulatedTF32() as mode:
        exact = half_errors("float32", classes, ratio, **tiling)
        assert not mode.products
        errors = half_errors("tf32", classes, ratio, **tiling)
    u = 2.0**-10
    logit = SCALE * (2 * u + u**2)  # see layer/products.py
    gradient = SCALE * (np.exp(2 * logit) * (1 + u) ** 2 - 1 + 2 * u + u**2)
    assert (errors <= np.array([logit, gradient, gradient])).all() and (errors > 10 * exact).any()
    assert mode.products and not torch.backends.cuda.matmul.allow_tf32


def half_errors(dtype, classes, ratio, **tiling):
    """Errors of a step with rounded products: of the loss, and of both gradients as the bound counts them."""
    layer = build_v2(classes, ratio, MARGINS["cosface"], SCALE, layer_dtype=dtype, **tiling)
    loss, (d_features, d_centers), features, centers, labels, sampled = step_of(layer)
    expected = expected_of(features, centers, labels, sampled, MARGINS["cosface"])

    def weighted(error, rows):  # the gradient by a row is that by its unit row, divided by its norm
        return np.linalg.norm(error, axis=1) * np.linalg.norm(rows, axis=1)

    by_features = len(features) * weighted(d_features - expected.d_features, features).max()
    by_centers = weighted(d_centers - expected.d_centers, centers).sum()
    return np.array([abs(loss - expected.loss), by_features, by_centers])


@pytest.mark.parametrize("classes, ratio", [(12, 1.0), (31, 0.3)])
@pytest.mark.parametrize("tiling", CACHED_OR_NOT[:2])
def test_half_precision_keeps_its_error_bounds(classes, ratio, tiling):
    errors = []
    for dtype, u, rounds_products in ((torch.bfloat16, 2.0**-8, True), (torch.float16, 2.0**-11, False)):
        logit = SCALE * (2 * u + u**2 + rounds_products * u * (1 + u) ** 2)  # see layer/products.py
        gradient = SCALE * (np.exp(2 * logit) * (1 + u) ** 3 - 1)
        errors.append(half_errors(dtype, classes, ratio, **tiling))
        assert (errors[-1] <= np.array([logit, gradient, gradient])).all()
    assert (errors[1] < errors[0]).all() and errors[1].any()


@pytest.mark.parametrize("classes, ratio", [(12, 1.0), (31, 0.3)])
def test_kernels_keep_the_same_error_bounds(monkeypatch, classes, ratio):
    monkeypatch.setattr(interpreted, "rounds_to_tf32", True)
    for dtype, u in (("tf32", 2.0**-10), ("bfloat16", 2.0**-8), ("float16", 2.0**-11)):
        logit = SCALE * (2 * u + u**2)
        gradient = SCALE * (np.exp(2 * logit) * (1 + u) ** 2 - 1)  # the targets are not rounded
        errors = half_errors(dtype, classes, ratio, layer_kernel="triton")
        assert (errors <= np.array([logit, gradient, gradient])).all() and errors.max() > u / 10


@pytest.mark.parametrize("tiling", CACHED_OR_NOT[:2])
def test_float16_holds_the_gradients_of_hard_negatives(tiling):
    """Of negatives that equal their features: their probabilities are 1, their slopes 2.9."""
    gradients = []
    for dtype in (torch.float32, torch.float16):
        layer = build_v2(12, 1.0, with_state(CurricularFace(64.0).eval(), t=0.9), layer_dtype=dtype, **tiling)
        local = torch.from_numpy(np.repeat(all_ranks(layer.weight)[:1], len(range(6)[LOCAL]), axis=0)).requires_grad_()
        layer(local, torch.full((len(local),), 1)).backward()
        gradients += [all_ranks(local.grad), all_ranks(layer.weight.grad)]
    for expected, found in zip(gradients[:2], gradients[2:]):
        np.testing.assert_allclose(found, expected, rtol=1e-2, atol=1e-2 * np.abs(expected).max())


def test_backward_of_the_loss_is_a_step():
    """loss.backward() updates the same bits as step(); a factor of the loss acts on the features' gradient alone."""
    features, labels = random_batch(18)
    stepped, differentiated = build(18, 0.5), build(18, 0.5)
    for seed in range(3):
        features, labels = random_batch(18, seed)
        gradient, loss = stepped.step(torch.from_numpy(features[LOCAL]), torch.from_numpy(labels[LOCAL]))
        local = torch.from_numpy(features[LOCAL]).requires_grad_()
        other = differentiated(local, torch.from_numpy(labels[LOCAL]))
        (4 * other).backward()
        assert loss == other and torch.equal(4 * gradient, local.grad)
        assert torch.equal(stepped.weight, differentiated.weight)
        assert torch.equal(stepped.weight_mom, differentiated.weight_mom)
    assert differentiated.weight.grad is None


@pytest.mark.parametrize("name", [*MARGINS, *STATEFUL])
def test_features_equal_to_their_centers_give_finite_gradients(name):
    for sign in (1, -1):  # theta = 0 and theta = pi
        layer = build(6, 1.0, margins_of(name)[0], 64.0)
        features = torch.from_numpy(sign * all_ranks(layer.weight)[LOCAL])
        gradient, loss = layer.step(features, torch.arange(6)[LOCAL])
        assert torch.isfinite(loss) and torch.isfinite(gradient).all()
        assert torch.isfinite(layer.weight).all() and torch.isfinite(layer.weight_mom).all()


def test_labels_above_2_to_the_24_reach_their_centers():
    """float32 has no 16,777,217. Only the centers of the labels are sampled, so that only they move."""
    classes = 2**24 + 2
    layer = build(classes, 1e-9, embedding_size=2)
    before = layer.weight.clone()
    labels = np.array([2**24 + 1, 2**24 - 1, 2**24 + 1, 5, 2**24 - 1, 5])
    features = np.random.default_rng(0).standard_normal((6, 2)).astype(np.float32)
    layer.step(torch.from_numpy(features[LOCAL]), torch.from_numpy(labels[LOCAL]))
    moved = all_ranks((layer.weight != before).any(dim=1).nonzero().flatten() + layer.class_start)
    assert set(moved) >= {5, 2**24 - 1, 2**24 + 1} and len(moved) < 3 + SIZE  # ranks without a label sample one center
    assert 2**24 not in moved
