"""The choice of the fused kernels, their comparison with PyTorch's operators, and trainings with both.

test_torch_layer_oracle.py and test_torch_center_optimizers.py compare the kernels with float64.
"""

import logging
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch_layer import FUSED, LOCAL, all_ranks, build, random_batch

import interpreted
from partial_fc_torch import AdaFace, ArcFace, CombinedMarginLoss, CosFace, CurricularFace, PartialFC
from partial_fc_torch.layer.kernels import selfcheck, triton_passes
from partial_fc_torch.layer.kernels.blocks import SMALLEST
from partial_fc_torch.layer.kernels.choice import Form, chosen_passes
from partial_fc_torch.layer.kernels.triton_passes import TritonPasses
from partial_fc_torch.layer.objectives import Softmax
from partial_fc_torch.layer.optimizers import SGD, Adagrad, AdamW
from partial_fc_torch.layer.products import products_of
from partial_fc_torch.layer.step import Loss


def compare(margin, dtype, optimizer, change=lambda fused: None, labels_per_item=1):
    """Runs the comparison of the first step after a change of the kernels; 10 is no multiple of a block size."""
    fused = TritonPasses(Loss(margin, Softmax(), products_of(dtype, margin.scale)), 0, SMALLEST)
    change(fused)
    for gathered, weighted in ((False, False), (True, True)):
        form = Form(torch.device("cpu"), torch.float32, labels_per_item, gathered, weighted)
        selfcheck.require_agreement(fused, form, 10, optimizer)


@pytest.mark.world_size(1)
@pytest.mark.parametrize(
    "margin, dtype, optimizer",
    [
        (ArcFace(), "tf32", None),
        (CurricularFace(), "bfloat16", SGD(momentum_convention="steps")),
        (CombinedMarginLoss(64.0, 1.0, 0.0, 0.4, 0.1), "tf32", AdamW()),
        (AdaFace(), "bfloat16", Adagrad(weight_decay=0.1)),
    ],
)
def test_a_step_with_kernels_agrees_with_pytorch(margin, dtype, optimizer):
    compare(margin, dtype, optimizer)


def forget_a_target(fused):
    sort = fused._sorted_labels

    def without_first(step):
        labels = sort(step)
        labels["sorted_columns"][0] = -1
        return labels

    fused._sorted_labels = without_first


def scale_sums(factor):
    def change(fused):
        statistics = fused.statistics
        fused.statistics = lambda step: statistics(step) * torch.tensor([[1.0], [factor]])

    return change


@pytest.mark.world_size(1)
@pytest.mark.parametrize(
    "change, message",
    [
        (forget_a_target, "gradient by the centers differs"),
        (scale_sums(2), "log_sum_exp differs"),
    ],
)
def test_a_wrong_gradient_is_found(change, message):
    with pytest.raises(ArithmeticError, match=message):
        compare(ArcFace(), "tf32", None, change)


@pytest.mark.world_size(1)
def test_a_wrong_update_is_found(monkeypatch):
    right = triton_passes.fused_update

    def one_percent_more(receive):
        update = right(receive)
        return update._replace(rates=(1.01 * update.rates[0], *update.rates[1:])) if update.optimizer else update

    monkeypatch.setattr(triton_passes, "fused_update", one_percent_more)
    with pytest.raises(ArithmeticError, match="update of the centers differs by 0.01"):
        compare(ArcFace(), "tf32", SGD())


def steps(layer, number=3):
    """Returns the losses of some steps, and then the centers and states of all ranks."""
    losses = []
    for seed in range(number):
        features, labels = random_batch(layer.num_classes, seed)
        losses.append(layer.step(torch.from_numpy(features[LOCAL]), torch.from_numpy(labels[LOCAL]))[1].item())
        if not layer.update_in_backward:
            layer.optimizer.step()
    return [np.array(losses), *(all_ranks(layer.rows(name)) for name in layer.widths)]


@pytest.mark.parametrize(
    "ratio, arguments",
    [
        (0.3, {"on_host": True}),
        (0.3, {"update_in_backward": False}),
        (1.0, {"optimizer": Adagrad(), "sampling_correction": True}),
    ],
)
def test_a_training_with_kernels_equals_one_without(ratio, arguments):
    arguments = {"device": "cpu", **arguments}
    for found, expected in zip(steps(build(31, ratio, **FUSED, **arguments)), steps(build(31, ratio, **arguments))):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.world_size(1)
@pytest.mark.parametrize(
    "batch, size, classes, ratio, tile_classes, processors, optimizer",
    [
        (6, 10, 21, 1.0, 24, 24, SGD()),  # six parts for four programs, which sum two each
        (5, 5, 27, 1.0, 16, 4, AdamW()),  # chunks of 16 and 11 centers; no block divides 5
        (3, 7, 19, 0.9, 8, 2, Adagrad()),
        (9, 3, 9, 1.0, 0, 12, SGD(momentum_convention="steps")),  # the last tiles have one row and one center
    ],
)
def test_parts_that_do_not_divide_evenly(monkeypatch, batch, size, classes, ratio, tile_classes, processors, optimizer):
    monkeypatch.setattr(interpreted, "SMALLEST", replace(SMALLEST, processors=processors))
    rng = np.random.default_rng(0)
    features, labels = torch.from_numpy(rng.standard_normal((batch, size), np.float32)), rng.integers(0, classes, batch)
    labels[:2] = classes - 1, 0
    sizes = {"embedding_size": size, "tile_classes": tile_classes, "optimizer": optimizer, "device": "cpu"}
    layers = [build(classes, ratio, **sizes, **kernels) for kernels in ({}, {"layer_kernel": "triton"})]
    assert isinstance(layers[1]._computation.of_torch, TritonPasses)
    for _ in range(2):
        expected, found = ([*layer.step(features, labels), *map(layer.rows, layer.widths)] for layer in layers)
        for one, other in zip(found, expected):
            np.testing.assert_allclose(one.detach(), other.detach(), rtol=1e-3, atol=1e-5)


@pytest.mark.world_size(1)
def test_the_products_and_bytes_of_a_step():
    batch, classes, size, blocks = 8, 32, 8, SMALLEST
    layer = build(classes, embedding_size=size, optimizer=SGD(), **FUSED)
    with interpreted.Count() as count:
        layer.step(torch.randn(batch, size), torch.arange(batch))
    assert count.operations == 4 * 2 * batch * classes * size
    # Operands of the products: rows of the batch and centers, read once per tile in each kernel.
    logits = batch * classes * size * (1 / blocks.classes + 1 / blocks.batch)
    features = batch * classes * size * (1 / blocks.embedding + 1 / blocks.batch)
    centers = batch * classes * size * (1 / blocks.embedding + 1 / blocks.centers)
    # In addition, the gradients by logits; in the update the raw gradient 3 times, centers 3 times, momentum twice.
    least = 4 * (2 * logits + features + centers + batch * classes + 8 * classes * size)
    assert least < count.bytes < 1.25 * least  # the rest are vectors with an element per row or class


class OwnNegatives(CosFace):
    def negatives(self, logits, targets):
        logits.clamp_(max=10)


def layer_of(kernel, margin=None, layer_dtype="tf32"):
    margin, sizes = margin or CosFace(8.0), dict(num_classes=31, embedding_size=4, sample_rate=0.3, device="cpu")
    layer = PartialFC(margin_softmax=margin, layer_kernel=kernel, layer_dtype=layer_dtype, **sizes)
    layer.learning_rate = 0.1
    return layer


@pytest.mark.world_size(1)
@pytest.mark.parametrize("kernel, chosen", [("triton", [TritonPasses]), ("auto", [])])
def test_the_choice_on_a_cpu(kernel, chosen, caplog):
    with caplog.at_level(logging.INFO):
        layer = layer_of(kernel)
        steps(layer)
    assert [type(passes) for passes in layer._computation.chosen.values()] == chosen
    assert ("the layer computes with fused kernels" in caplog.text) == (kernel == "triton")
    with pytest.raises(ValueError, match="layer_kernel is 'cuda'"):
        layer_of("cuda")


@pytest.mark.world_size(1)
def test_the_faster_passes_are_chosen(monkeypatch, caplog):
    layer = layer_of("torch")
    step, of_torch = layer._forward_step(torch.randn(4, 4), torch.arange(4)), layer._computation.of_torch
    with caplog.at_level(logging.INFO):
        assert chosen_passes(of_torch, step, layer.row_optimizer, measures=True) is of_torch
    assert re.search(r"fused kernels agree with them and take \d\d", caplog.text)  # times as long, in the interpreter
    monkeypatch.setattr(selfcheck, "relative_time", lambda *arguments: 0.9)
    assert isinstance(chosen_passes(of_torch, step, layer.row_optimizer, measures=True), TritonPasses)


@pytest.mark.world_size(1)
@pytest.mark.parametrize(
    "arguments, reason",
    [
        ({"layer_dtype": "float32"}, "layer_dtype is neither"),
        ({"layer_dtype": "float16"}, "layer_dtype is neither"),
        ({"margin": OwnNegatives(8.0)}, ".*OwnNegatives"),
    ],
)
def test_layers_that_the_kernels_do_not_support_use_pytorch(caplog, arguments, reason):
    found, expected = (steps(layer_of(kernel, **arguments)) for kernel in ("triton", "torch"))
    assert len(re.findall(f"instead of fused kernels: {reason}", caplog.text)) == 1
    for one, other in zip(found, expected):
        np.testing.assert_array_equal(one, other)


@pytest.mark.world_size(1)
def test_a_kernel_that_fails_is_not_used(caplog, monkeypatch):
    monkeypatch.setattr(triton_passes, "statistics_kernel", None)
    for one, other in zip(steps(layer_of("triton")), steps(layer_of("torch"))):
        np.testing.assert_array_equal(one, other)
    assert "instead of fused kernels: TypeError: 'NoneType' object is not subscriptable" in caplog.text
