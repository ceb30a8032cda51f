"""PartialFC_V2 in one process: derivatives by torch.autograd.gradcheck in float64, types, and refusals."""

import inspect

import numpy as np
import pytest
import torch

from oracle import MARGINS
from partial_fc_torch import CombinedMarginLoss, CosFace, PartialFC_V2
from partial_fc_torch.layer import module

B, E, CLASSES = 5, 3, 11


def batch(dtype=torch.float64):
    """Returns features (B, E) that require a gradient and labels (B,), two of which are the same."""
    rng = np.random.default_rng(0)
    features = torch.from_numpy(rng.standard_normal((B, E))).to(dtype)
    return features.requires_grad_(), torch.tensor([0, 10, 4, 4, 7])


@pytest.mark.parametrize("margins", MARGINS.values())
@pytest.mark.parametrize("ratio", [1.0, 0.3])
@pytest.mark.parametrize("cache_mb", [0, 1])
def test_gradcheck_in_float64(margins, ratio, cache_mb):
    layer = PartialFC_V2(
        CombinedMarginLoss(8.0, *margins), E, CLASSES, ratio, tile_classes=4, logits_cache_mb=cache_mb
    ).double()
    features, labels = batch()

    def loss(features, weight):
        layer.sampler.restart(0)  # the same classes at every call
        return layer(features, labels)

    # gradcheck runs the backward pass twice; the second one recomputes the logits, with other rounding errors.
    assert torch.autograd.gradcheck(loss, (features, layer.weight), nondet_tol=1e-12)


def test_forward_passes_before_a_backward_pass_keep_their_centers():
    def gradients(layer, together):
        (features, labels), others, losses = batch(), torch.tensor([1, 2, 3, 5, 6]), []
        layer(features, labels).backward()  # whose memory the next step may use
        layer.sampler.restart(0)
        for each in (labels, others):
            losses.append(layer(features, each))
            if not together:
                losses.pop().backward()
        for loss in losses:
            loss.backward()
        return features.grad, layer.weight.grad

    apart, together = (
        gradients(PartialFC_V2(CosFace(), E, CLASSES, 0.6, tile_classes=4).double(), form) for form in (False, True)
    )
    for found, expected in zip(together, apart):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_embeddings_and_autocast_leave_the_layer_in_float32(dtype):
    layer = PartialFC_V2(CosFace(), E, CLASSES, fp16=True)
    features, labels = batch(dtype)
    single = features.detach().float().requires_grad_()
    expected = layer(single, labels)
    with torch.autocast("cpu", torch.bfloat16):
        loss = layer(features, labels)
    assert loss.dtype == torch.float32 and loss == expected
    loss.backward()
    expected.backward()
    assert features.grad.dtype == dtype and torch.equal(features.grad, single.grad.to(dtype))


@pytest.mark.parametrize("optimize", [0, 1])
def test_changed_centers_are_an_error_in_the_backward_pass(optimize, monkeypatch):
    """Even with python -O, which removes assertions."""
    names, source = dict(vars(module)), inspect.getsource(module._MeanLoss)
    exec(compile(source, module.__file__, "exec", optimize=optimize), names)
    monkeypatch.setattr(module, "_MeanLoss", names["_MeanLoss"])
    layer, (features, labels) = PartialFC_V2(CosFace(), E, CLASSES), batch(torch.float32)
    loss = layer(features, labels)
    with torch.no_grad():
        layer.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_gradients_are_recorded_only_where_needed():
    layer, (features, labels) = PartialFC_V2(CosFace(), E, CLASSES), batch(torch.float32)
    with torch.no_grad():
        assert not layer(features, labels).requires_grad
    layer.weight.requires_grad_(False)
    layer(features, labels).backward()
    assert layer.weight.grad is None and features.grad is not None


def test_another_margin_loss_and_sample_rates_out_of_range_are_refused():
    with pytest.raises(TypeError, match="CrossEntropyLoss, expected a Margin"):
        PartialFC_V2(torch.nn.CrossEntropyLoss(), E, CLASSES)
    for ratio in (-0.1, 1.5):
        with pytest.raises(ValueError, match=f"not {ratio}"):
            PartialFC_V2(CosFace(), E, CLASSES, ratio)


def test_processes_without_a_process_group_are_refused(monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="2 processes, but there is no process group"):
        PartialFC_V2(CosFace(), E, CLASSES)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_centers_in_half_precision_are_refused(dtype):
    layer = PartialFC_V2(CosFace(), E, CLASSES).to(dtype)
    with pytest.raises(TypeError, match=f"the centers are {dtype}, but must be float32"):
        layer(*batch(dtype))
