"""The choice of the kernels, their comparison with PyTorch's operators, and trainings with both.

test_torch_layer_oracle.py and test_torch_center_optimizers.py compare the kernels with float64.
"""

import itertools
import logging
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch_layer import FUSED, LOCAL, MM, all_ranks, build, random_batch

import interpreted
from partial_fc_torch import AdaFace, ArcFace, CombinedMarginLoss, CosFace, CurricularFace, InterTopK, PartialFC
from partial_fc_torch.layer.kernels import selfcheck, triton_passes
from partial_fc_torch.layer.kernels.blocks import SMALLEST
from partial_fc_torch.layer.kernels.choice import Form, chosen_passes
from partial_fc_torch.layer.kernels.triton_passes import TritonPasses
from partial_fc_torch.layer.objectives import Softmax
from partial_fc_torch.layer.optimizers import SGD, Adagrad, AdamW
from partial_fc_torch.layer.products import products_of
from partial_fc_torch.layer.step import Loss


def compare(margin, dtype, optimizer, fused, change=lambda passes: None, labels_per_item=1):
    """Runs the comparison of the first step after a change of the kernels; 10 is no multiple of a block size."""
    for gathered, weighted in ((False, False), (True, True)):
        passes = TritonPasses(Loss(margin, Softmax(), products_of(dtype, margin.scale)), 0, SMALLEST, fused)
        change(passes)
        form = Form(torch.device("cpu"), torch.float32, labels_per_item, gathered, weighted)
        selfcheck.require_agreement(passes, form, 10, optimizer)


@pytest.mark.world_size(1)
@pytest.mark.parametrize(
    "margin, dtype, optimizer, fused",
    [
        (ArcFace(), "tf32", None, True),
        (ArcFace(256.0), "float16", SGD(), True),
        (CurricularFace(), "bfloat16", SGD(momentum_convention="steps"), False),
        (CurricularFace(), "float16", None, False),
        (CombinedMarginLoss(64.0, 1.0, 0.0, 0.4, 0.1), "float32", AdamW(), False),
        (CombinedMarginLoss(64.0, 1.0, 0.0, 0.4, 0.1), "float16", AdamW(), True),
        (AdaFace(), "bfloat16", Adagrad(weight_decay=0.1), True),
    ],
)
def test_a_step_with_kernels_agrees_with_pytorch(margin, dtype, optimizer, fused):
    compare(margin, dtype, optimizer, fused)


def forget_a_target(passes):
    start = passes.start_gradients

    def without_first(step):
        start(step)
        step.kept.labels["sorted_columns"][0] = -1

    passes.start_gradients = without_first


def scale_sums(factor):
    def change(passes):
        statistics = passes.statistics
        passes.statistics = lambda step: statistics(step) * torch.tensor([[1.0], [factor]])

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
        compare(ArcFace(), "float32", None, False, change)


@pytest.mark.world_size(1)
def test_a_wrong_update_is_found(monkeypatch):
    right = triton_passes.fused_update

    def one_percent_more(receive):
        update = right(receive)
        return update._replace(rates=update.rates._replace(step_size=1.01 * update.rates.step_size))

    monkeypatch.setattr(triton_passes, "fused_update", one_percent_more)
    with pytest.raises(ArithmeticError, match="update of the centers differs by 0.01"):
        compare(ArcFace(), "float16", SGD(), False)


def steps(layer, number=3):
    """Returns the losses of some steps, and then the centers and states of all ranks."""
    losses = []
    for seed in range(number):
        features, labels = random_batch(layer.num_classes, seed)
        losses.append(layer.step(torch.from_numpy(features[LOCAL]), torch.from_numpy(labels[LOCAL]))[1].item())
        if not layer.update_in_backward:
            layer.optimizer.step()
    return [np.array(losses), *(all_ranks(layer.rows(name).float()) for name in layer.widths)]


@pytest.mark.parametrize(
    "ratio, kernels, arguments",
    [
        (0.3, FUSED, {"on_host": True}),
        (0.3, MM, {"update_in_backward": False}),
        (1.0, FUSED, {"optimizer": Adagrad(), "sampling_correction": True}),
        (0.3, MM, {"optimizer": Adagrad()}),
        (0.3, MM, {"center_dtype": "bfloat16"}),
    ],
)
def test_a_training_with_kernels_equals_one_without(ratio, kernels, arguments):
    arguments = {"device": "cpu", **arguments}
    tolerance = {"rtol": 2e-2, "atol": 1e-3} if "center_dtype" in arguments else {"rtol": 1e-3, "atol": 1e-5}
    for found, expected in zip(steps(build(31, ratio, **kernels, **arguments)), steps(build(31, ratio, **arguments))):
        np.testing.assert_allclose(found, expected, **tolerance)


@pytest.mark.parametrize("ratio", [1.0, 0.3])
@pytest.mark.parametrize("kernels", [MM, FUSED])
def test_a_copy_of_the_unit_rows_changes_no_result(kernels, ratio):
    """Also after changes of the centers that the kernels have not made."""
    arguments = {**kernels, "layer_dtype": "float16"}
    layers = [build(31, ratio, unit_copy=copies, **arguments) for copies in (None, False)]
    for seed in range(3):
        features, labels = (torch.from_numpy(each[LOCAL]) for each in random_batch(31, seed))
        found, expected = ([*layer.step(features, labels), *map(layer.rows, layer.widths)] for layer in layers)
        for one, other in zip(found, expected):
            torch.testing.assert_close(one, other, rtol=0, atol=0)
        rows = [layer._computation.of_torch.unit_rows._rows for layer in layers]
        assert rows[1] is None and len(rows[0]) == -(-layers[0].num_local // SMALLEST.classes) * SMALLEST.classes
        unit = torch.nn.functional.normalize(layers[0].rows("weight")).half()
        torch.testing.assert_close(rows[0][: len(unit)], unit, rtol=1e-3, atol=1e-6)
        assert not rows[0][len(unit) :].any()
        if seed:
            for layer in layers:
                with torch.no_grad():
                    layer.weight.mul_(-1)


@pytest.mark.world_size(1)
@pytest.mark.parametrize(
    "batch, size, classes, ratio, tile_classes, processors, optimizer",
    [
        (6, 10, 21, 1.0, 24, 24, SGD()),
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
    layers = [build(classes, ratio, **sizes, layer_kernel=kernel) for kernel in ("torch", "mm", "triton")]
    assert isinstance(layers[1]._computation.of_torch, TritonPasses)
    for _ in range(2):
        expected, *found = ([*layer.step(features, labels), *map(layer.rows, layer.widths)] for layer in layers)
        for one, other in zip(itertools.chain(*found), 2 * expected):
            np.testing.assert_allclose(one.detach(), other.detach(), rtol=1e-3, atol=1e-5)


@pytest.mark.world_size(1)
@pytest.mark.parametrize("kernels, products", [(MM, 0), (FUSED, 2)])
def test_the_products_and_bytes_of_a_step(kernels, products):
    """With whole blocks; in units of floats."""
    batch, classes, size, blocks = 8, 32, 8, SMALLEST
    layer = build(classes, embedding_size=size, optimizer=SGD(), **{**kernels, "tile_classes": 0})
    with interpreted.Count() as count:
        layer.step(torch.randn(batch, size), torch.arange(batch))
    assert count.operations == products * 2 * batch * classes * size
    # Each pass reads centers and writes unit rows. The kernels of the logits read the cosines, or rows of the batch and
    # centers once per tile. The backward pass writes the gradients by the logits. The update reads the raw gradient,
    # centers and momentum, and writes the latter two.
    logits = batch * classes * (size * (1 / blocks.classes + 1 / blocks.batch) if products else 1)
    least = 4 * (4 * classes * size + 2 * logits + batch * classes + 5 * classes * size)
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
@pytest.mark.parametrize("kernel, fused", [("triton", [True]), ("mm", [False]), ("auto", [])])
def test_the_choice_on_a_cpu(kernel, fused, caplog):
    with caplog.at_level(logging.INFO):
        layer = layer_of(kernel)
        steps(layer)
    assert [passes.fused for passes in layer._computation.chosen.values()] == fused
    assert (f"the layer computes with layer_kernel={kernel}" in caplog.text) == bool(fused)
    with pytest.raises(ValueError, match="layer_kernel is 'cuda'"):
        layer_of("cuda")


@pytest.mark.world_size(1)
def test_the_fastest_passes_are_chosen(monkeypatch, caplog):
    layer = layer_of("torch", layer_dtype="float16")
    step, of_torch = layer._forward_step(torch.randn(4, 4), torch.arange(4)), layer._computation.of_torch
    with caplog.at_level(logging.INFO):
        assert chosen_passes(of_torch, step, layer.row_optimizer, "auto") is of_torch
    assert re.search(r"layer_kernel=torch: torch [.\d]+ ms, mm [.\d]+ ms, triton [.\d]+ ms", caplog.text)
    for seconds, fused in (([3, 1, 2], False), ([3, 2, 1], True)):
        monkeypatch.setattr(selfcheck, "times", lambda *arguments, seconds=seconds: seconds)
        assert chosen_passes(of_torch, step, layer.row_optimizer, "auto").fused is fused


@pytest.mark.world_size(1)
def test_with_too_little_memory_to_measure_the_kernels_are_used(monkeypatch, caplog):
    def times(*arguments):
        raise torch.OutOfMemoryError("of 16 GiB")

    monkeypatch.setattr(selfcheck, "times", times)
    layer = layer_of("torch")
    step, of_torch = layer._forward_step(torch.randn(4, 4), torch.arange(4)), layer._computation.of_torch
    assert chosen_passes(of_torch, step, layer.row_optimizer, "auto").fused is False
    assert "too little memory to measure the implementations of the layer: of 16 GiB" in caplog.text


@pytest.mark.world_size(1)
@pytest.mark.parametrize("kernel", ["mm", "triton"])
@pytest.mark.parametrize("margin", [OwnNegatives, InterTopK])
def test_layers_that_the_kernels_do_not_support_use_pytorch(caplog, kernel, margin):
    found, expected = (steps(layer_of(each, margin=margin(8.0))) for each in (kernel, "torch"))
    assert len(re.findall(f"without the kernels of layer_kernel={kernel}: .*{margin.__name__}", caplog.text)) == 1
    for one, other in zip(found, expected):
        np.testing.assert_array_equal(one, other)


@pytest.mark.world_size(1)
def test_a_kernel_that_fails_is_not_used(caplog, monkeypatch):
    monkeypatch.setattr(triton_passes, "statistics_kernel", None)
    for one, other in zip(steps(layer_of("triton")), steps(layer_of("torch"))):
        np.testing.assert_array_equal(one, other)
    assert "layer_kernel=triton: TypeError: 'NoneType' object is not subscriptable" in caplog.text
