"""Objectives, several labels and sub-centers against the dense form, and what objectives learn and refuse."""

import dense_objectives as dense
import numpy as np
import pytest
import torch
from dense_objectives import CLASSES, LABELS, MARGINS, SCALE, TILES, bias_of, check_step, cosface, own
from torch.nn.functional import softplus
from torch_layer import FUSED, LOCAL, LR, MM, SIZE, E, G, all_ranks, build, build_v2, random_batch

import oracle
from partial_fc.layer.sharding import shard_of
from partial_fc_torch import CosFace, CurricularFace
from partial_fc_torch.layer.accumulation import Accumulation
from partial_fc_torch.layer.objectives import OBJECTIVES, Objective, as_objective
from partial_fc_torch.layer.objectives.bce import BCE
from partial_fc_torch.layer.stores import CenterStore, HostStore

HERE = torch.from_numpy(LABELS[LOCAL])  # this rank's labels


def features_here(seed=7):
    """Returns this rank's features of a batch."""
    return torch.from_numpy(random_batch(CLASSES, seed)[0][LOCAL])


class WithGain(BCE):
    """A user's loss with another parameter beside the bias, which affects the labels only."""

    def __init__(self, scale, num_classes):
        super().__init__(scale, num_classes)
        self.gain = torch.nn.Parameter(torch.tensor(2.0))

    def forward(self, negatives, targets, cosines, present):
        return super().forward(negatives, self.gain * targets, cosines, present)


@pytest.mark.world_size(1)
@pytest.mark.parametrize("frozen", [(), ("bias",)])
def test_only_the_bias_has_a_part_in_the_negatives(frozen):
    objective = as_objective(WithGain(SCALE, CLASSES), SCALE, CLASSES)
    for name in frozen:
        getattr(objective, name).requires_grad_(False)
    targets, one = torch.tensor([[0.3], [-1.0]], dtype=torch.float64), torch.ones(2, 2, dtype=torch.float64)
    found = objective.losses(one, targets, targets, targets < 1).by_parameters
    by_logits = -torch.sigmoid(-objective.gain * targets - objective.bias).detach()
    of_bias = [] if frozen else [by_logits.sum() + one[1].sum()]
    expected = [*of_bias, (by_logits * targets).sum()]
    torch.testing.assert_close([each.double() for each in found], expected, rtol=1e-6, atol=1e-6)


ALL = [*OBJECTIVES, own]
ONE_VERSUS_ALL = "bce", "uniface", "sphereface2"


@pytest.mark.parametrize(
    "name, ratio, tiling",
    [
        (name, ratio, tiling)
        for name in ALL
        for ratio in (1.0, 0.3, 0.1, 0.0)
        for tiling in ({}, TILES, FUSED)
        if tiling is not FUSED or name not in ONE_VERSUS_ALL and ratio in (1.0, 0.3)
    ],
)
@pytest.mark.parametrize("labels", [LABELS, np.array([3, 11, -1, 3, 30, 0])], ids=["several", "one"])
def test_objectives_match_the_dense_form(name, ratio, tiling, labels):
    layer = build_v2(CLASSES, ratio, CosFace(SCALE), SCALE, objective=name, **tiling)
    classes, _ = check_step(layer, labels, name)
    assert set(labels[labels >= 0]) <= set(classes)


@pytest.mark.parametrize("target", [each for each in MARGINS if each is not cosface])
@pytest.mark.parametrize("name", ["softmax", "softmax_shared", "uniface"])
def test_margins_act_on_each_label(name, target):
    layer = build_v2(CLASSES, 0.5, MARGINS[target](), SCALE, objective=name, tile_classes=3)
    check_step(layer, LABELS, name, target)


@pytest.mark.parametrize("tiling", [{}, TILES])
@pytest.mark.parametrize("name", ["softmax", "circle", "bce"])
@pytest.mark.parametrize("labels", [LABELS, LABELS[:, :1]], ids=["several", "one"])
@pytest.mark.parametrize("ratio", [1.0, 0.3])
def test_sub_centers_match_the_dense_form(name, tiling, labels, ratio):
    layer = build_v2(CLASSES, ratio, CosFace(SCALE), SCALE, objective=name, sub_centers=3, **tiling)
    assert len(all_ranks(layer.weight)) == 3 * CLASSES
    check_step(layer, labels, name, sub_centers=3)


@pytest.mark.parametrize("tiling", [{}, TILES, MM])
@pytest.mark.parametrize("name", ["softmax", "mlcd"])
def test_sampled_negatives_count_for_all(name, tiling):
    layer = build_v2(CLASSES, 0.5, CosFace(SCALE), SCALE, objective=name, sampling_correction=True, **tiling)
    features, classes, found = dense.gradients_of(layer, LABELS)
    shards = [shard_of(CLASSES, rank, SIZE) for rank in range(SIZE)]
    counts = oracle.negative_counts(np.array(classes), LABELS[LABELS >= 0], shards)
    assert max(counts.values()) > 1.2
    expected = dense.Reference(name, features, all_ranks(layer.weight), LABELS, classes, cosface, counts=counts)
    dense.assert_equal(found, expected)


@pytest.mark.world_size(1)
@pytest.mark.parametrize("tiling", [{}, TILES])
def test_the_sum_of_corrected_binary_losses_is_unbiased(tiling):
    def loss_of(layer):
        with torch.no_grad():
            return layer(torch.ones(2, E), torch.full((2,), 5)).item()

    full = loss_of(build_v2(30, objective="bce"))
    layer = build_v2(30, 0.4, objective="bce", sampling_correction=True, **tiling)
    found = np.array([loss_of(layer) for _ in range(400)])
    assert abs(found.mean() - full) < 4 * found.std() / np.sqrt(len(found)) and found.std() > 0.01 * full


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("tiling", [{}, MM])
def test_a_row_whose_labels_are_all_classes_has_no_negatives(name, tiling):
    layer = build_v2(2, 1.0, CosFace(SCALE), SCALE, objective=name, **({} if name in ONE_VERSUS_ALL else tiling))
    _, found = check_step(layer, np.tile([[0, 1]], (G, 1)), name)
    assert all(np.isfinite(each).all() for each in found)


def trained(name, labels, ratio=0.5, steps=3, **arguments):
    """Losses of some steps of PartialFC, then centers, momentum and bias of all ranks."""
    layer = build(CLASSES, ratio, CosFace(SCALE), SCALE, objective=name, **arguments)
    losses = []
    for seed in range(steps):
        losses.append(layer.step(features_here(seed), torch.from_numpy(labels[LOCAL]))[1].item())
        if not layer.update_in_backward:
            layer.optimizer.step()
    return [np.array(losses), *(all_ranks(layer.rows(field)) for field in layer.widths), bias_of(layer)]


def staged(rows, device):
    return HostStore(CenterStore(rows, device), device, cores=2)


@pytest.mark.parametrize("sub_centers", [1, 2])
@pytest.mark.parametrize("name", ["softmax", "bce"])
@pytest.mark.parametrize("ratio", [1.0, 0.5])
@pytest.mark.parametrize("change", [{"store": staged}, {"folder": ""}, {"update_in_backward": False}, FUSED])
def test_stores_and_explicit_steps_train_the_same(name, ratio, change, sub_centers, tmp_path):
    if change is FUSED and (sub_centers > 1 or name == "bce"):
        return
    change = {**change, "folder": str(tmp_path)} if "folder" in change else change
    expected = trained(name, LABELS, ratio, sub_centers=sub_centers)
    for one, other in zip(trained(name, LABELS, ratio, sub_centers=sub_centers, **change), expected):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=3e-4)  # centers and momentum are up to 50


@pytest.mark.parametrize("name", ["softmax_shared", "bce"])
def test_micro_batches_of_several_labels_equal_one_batch(name):
    """The bias is updated once, and the same on all ranks."""
    features = torch.from_numpy(random_batch(CLASSES)[0])
    layers = [build(CLASSES, 0.9, CosFace(SCALE), SCALE, objective=name) for _ in range(2)]
    here, labels = features[LOCAL], HERE
    count = len(here)
    _, loss = layers[0].step(here, labels)
    update = Accumulation(layers[1], labels, count)
    losses = [update.step(here[each : each + 1], labels[each : each + 1])[1] for each in range(count)]
    update.update()
    np.testing.assert_allclose(torch.stack(losses).mean(), loss, rtol=1e-5)
    np.testing.assert_allclose(*(layer.weight.detach() for layer in layers), rtol=3e-4, atol=3e-5)
    if name == "bce":
        biases = [layers[0].collectives.gather_object("bias", bias_of(layer)) for layer in layers]
        assert len(set(biases[0])) == 1 and biases[0][0] != -np.log(CLASSES - 1)
        np.testing.assert_allclose(*biases, rtol=1e-6)


def test_the_bias_takes_a_step_of_gradient_descent_and_is_saved():
    layer = build(CLASSES, 1.0, CosFace(SCALE), SCALE, objective="bce")
    before, centers = bias_of(layer), all_ranks(layer.weight)
    features = random_batch(CLASSES)[0]
    layer.step(features_here(), HERE)
    expected = dense.Reference("bce", features, centers, LABELS, list(range(CLASSES)), cosface, bias=before)
    assert bias_of(layer) == pytest.approx(before - LR * expected.d_bias, rel=1e-6)
    other = build(CLASSES, 1.0, CosFace(SCALE), SCALE, objective="bce")
    other.load_state_dict(layer.state_dict())
    assert bias_of(other) == bias_of(layer) != before


def test_ranks_whose_bias_differs_take_that_of_rank_0():
    """A user may clip or skip the gradients of a rank, whose centers no other rank has."""
    layer = build(CLASSES, 1.0, CosFace(SCALE), SCALE, objective="bce", update_in_backward=False)
    rank, features = layer.collectives.rank, features_here()
    layer.step(features, HERE)
    torch.nn.utils.clip_grad_norm_(layer.optimizer.param_groups[0]["params"], 1.0 + rank)
    layer.optimizer.step()
    of_rank_0 = layer.collectives.broadcast("bias", bias_of(layer))
    assert (bias_of(layer) == of_rank_0) == (rank == 0)
    layer.step(features, HERE)
    assert bias_of(layer) == of_rank_0


def test_a_bias_follows_the_type_of_the_layer():
    for kind in (torch.float32, torch.float64):
        layer = build(CLASSES, objective="bce", update_in_backward=False).to(kind)
        before = bias_of(layer)
        layer.step(torch.ones(len(HERE), E), HERE)
        layer.optimizer.step()
        assert layer.objective.bias.dtype == layer.weight.dtype and bias_of(layer) != before


def test_a_frozen_bias_keeps_its_value():
    objective = OBJECTIVES["bce"](SCALE, CLASSES).requires_grad_(False)
    layer = build(CLASSES, 1.0, CosFace(SCALE), SCALE, objective=objective)
    before, centers = bias_of(layer), layer.rows("weight").clone()
    layer.step(torch.ones(len(HERE), E), HERE)
    assert bias_of(layer) == before and not torch.equal(layer.rows("weight"), centers)


@pytest.mark.parametrize("weight", [1.0, 1e4])
def test_float16_holds_the_derivatives_of_any_objective(weight):
    """They are up to ``weight``, and float16 ends at 65504."""
    options = {"objective": "uniface", "objective_options": {"weight": weight}}
    half, single = (trained_once(layer_dtype=kind, **options) for kind in ("float16", "float32"))
    for one, other in zip(half, single):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-2 * np.abs(other).max())


def trained_once(**arguments):
    """The gradient by the features and the centers after a step."""
    layer = build(CLASSES, 1.0, CosFace(SCALE), SCALE, **arguments)
    gradient, _ = layer.step(features_here(), HERE)
    return gradient.numpy(), layer.rows("weight").numpy()


def test_half_precision_needs_centers_in_float32():
    layer = build(CLASSES, layer_dtype="bfloat16").double()
    with pytest.raises(TypeError, match="must be float32 with layer_dtype=bfloat16"):
        layer.step(torch.ones(2, E), torch.zeros(2, dtype=torch.int64))


def test_a_label_among_eight_trains_as_one_label():
    alone = trained("softmax", LABELS[:, 1], 1.0)
    repeated = trained("softmax", np.repeat(LABELS[:, 1:2], 8, axis=1), 1.0)
    for one, other in zip(alone, repeated):
        np.testing.assert_allclose(one, other, rtol=3e-4, atol=3e-5)


def test_eight_softmaxes_over_all_classes_are_softmax_shared():
    """As OneVision-Encoder trains: the labels of an item one after the other, each against all other classes."""
    labels = np.random.default_rng(1).permuted(np.tile(np.arange(CLASSES), (G, 1)), axis=1)[:, :8]
    layer = build_v2(CLASSES, 1.0, CosFace(SCALE), SCALE, objective="softmax_shared")
    features, classes, found = dense.gradients_of(layer, labels)
    centers = all_ranks(layer.weight)
    single = [dense.Reference("softmax", features, centers, labels[:, p], classes, cosface) for p in range(8)]
    for number, each in enumerate(("loss", "d_features", "d_centers")):
        mean = np.mean([getattr(reference, each) for reference in single], axis=0)
        np.testing.assert_allclose(found[number], mean, rtol=2e-4, atol=2e-4)


def test_a_margin_that_reads_the_label_needs_one():
    layer = build(CLASSES, 1.0, CurricularFace(SCALE), SCALE)
    with pytest.raises(ValueError, match="CurricularFace changes negatives by the label"):
        layer.step(torch.ones(len(HERE), E), HERE)


class Decreasing(Objective):
    def forward(self, negatives, targets, cosines, present):
        return -negatives


@pytest.mark.parametrize(
    "objective, message",
    [
        (Decreasing(), "Decreasing .*decreases with the negatives"),
        (lambda *rows: rows[1], r"returns \(2, 1\), not one loss per row"),
        ("hinge", "objective is 'hinge', but must be a known name"),
    ],
)
def test_objectives_that_cannot_be_trained_are_refused(objective, message):
    with pytest.raises(ValueError, match=message):
        build(CLASSES, objective=objective)


@pytest.mark.world_size(1)
@pytest.mark.parametrize("classes", [3, 20_000])
def test_the_first_bias_of_sphereface2_has_no_gradient_for_features_at_right_angles(classes):
    layer = build_v2(classes, 1.0, CosFace(64.0), 64.0, objective="sphereface2")
    with torch.no_grad():
        layer.weight.zero_()[:, 0] = 1
    features = torch.zeros(2, E)
    features[:, 1] = 1
    layer(features, torch.arange(2)).backward()
    assert abs(layer.objective.bias.grad.item()) < 1e-6
    assert layer(features, torch.arange(2)).item() < 1


class Counting(Objective):
    """Has a state: the number of its steps."""

    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, negatives, targets, cosines, present):
        """See Objective.forward."""
        self.steps += 1
        return torch.where(present, softplus(negatives[:, None] - targets), 0.0).sum(dim=1)


def test_a_state_of_an_objective_counts_each_batch_once():
    layer = build(CLASSES, objective=Counting())
    for size in (2, 1):  # another size is repeated
        layer.step(torch.ones(size, E), torch.zeros(size, dtype=torch.int64))
    sampler = layer.sampler.state()
    with pytest.raises(FloatingPointError):
        layer.step(torch.full((1, E), torch.nan), torch.zeros(1, dtype=torch.int64))
    assert layer.objective.steps == 2 and layer.sampler.state() == sampler


class Undefined(Objective):
    def forward(self, negatives, targets, cosines, present):
        return targets.abs().sqrt()[:, 0] + torch.where(negatives > 3, -negatives, negatives)


def test_a_loss_without_a_usable_derivative_is_not_finite():
    layer = build(CLASSES, margins=CosFace(64.0), scale=64.0, objective=Undefined())
    with pytest.raises(FloatingPointError):
        layer.step(torch.ones(2, E), torch.zeros(2, dtype=torch.int64))


def test_options_of_objectives():
    layer = build(CLASSES, objective="uniface", objective_options={"weight": 0.5})
    assert layer.objective.weight == 0.5 and bias_of(layer) == pytest.approx(-np.log(10 * CLASSES))
    with pytest.raises(ValueError, match="weight is -1.0, but must be above 0"):
        build(CLASSES, objective="uniface", objective_options={"weight": -1})


def test_unlabeled_items_do_not_hide_features_that_are_not_finite():
    layer = build(CLASSES)
    labels = torch.full((len(HERE),), -1)
    layer.step(torch.ones(len(labels), E), labels)
    with pytest.raises(FloatingPointError):
        layer.step(torch.full((len(labels), E), torch.nan), labels)
