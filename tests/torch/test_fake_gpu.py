"""A step on fake GPUs: devices, waits of the host, order, and numbers of kernels and bytes; see fake_gpu.py.

They do not show values, memory, times, errors of CUDA's kernels and of NCCL, and autocast, which is off. Autograd does
not run on fake GPUs, so the backward pass of a backbone is counted on a fake CPU, which has the same operators but for
cuDNN's. DistributedDataParallel is left out. Streams and threads of a bank on the
host are replaced: the trace has their work where it is started.
"""

import contextlib
import itertools
import threading
from functools import partial

import numpy as np
import pytest
import torch
from fake_gpu import DEVICE, NARROW, RANKS, WRITTEN_FOR, B, Trace, build, fake_gpu, sample_on_host, step
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import _disable_current_modes

from partial_fc.data.batch import Batch
from partial_fc.layer import sampling
from partial_fc_torch import (
    AdaFace,
    ArcFace,
    CosFace,
    CurricularFace,
    InterTopK,
    MagFace,
    get_model,
)
from partial_fc_torch.engine import TorchEngine
from partial_fc_torch.layer.optimizers import SGD, Adagrad, AdamW
from partial_fc_torch.optimizers import build_optimizer

pytestmark = WRITTEN_FOR
MARGINS = (ArcFace, AdaFace, MagFace, CurricularFace, InterTopK)
CHOICES = (MARGINS, (SGD, AdamW, Adagrad), (1.0, 0.2, 0.0), (torch.float32, torch.bfloat16), (0, 256), (64, 128))
CASES = list(itertools.product(*CHOICES))[::11]  # each pair of choices
REDUCE_SCATTER = "c10d::_reduce_scatter_base_"


def test_the_host_waits_once_for_the_device(monkeypatch):
    """Twice with rate 0, where the number of centers depends on the labels."""
    with fake_gpu(monkeypatch) as trace:
        for case in CASES:
            waits = step(build(*case), trace).count("wait")
            assert waits == (1 if case[2] else 2), case
        for arguments in ({"dtype": "tf32"}, {"sampling_correction": True}, {"tile": 0, "cache": None}, NARROW):
            assert step(build(**arguments), trace).count("wait") == 1, arguments


@pytest.mark.parametrize("optimizer", [SGD, AdamW, Adagrad])
@pytest.mark.parametrize("rate", [1.0, 0.2])
def test_with_a_bank_on_the_host_the_host_waits_for_the_labels_too(rate, optimizer, monkeypatch):
    with fake_gpu(monkeypatch) as trace:
        layer = build(optimizer=optimizer, rate=rate, on_host=True)
        layer.sample = partial(sample_on_host, layer.sampler)
        events = step(layer, trace, steps=2)  # for the second step, rows were fetched in advance
    assert events.count("wait") == 2
    assert events.index("wait") < events.index("mm")


@pytest.mark.parametrize("optimizer", [SGD, AdamW, Adagrad])
def test_an_explicit_update_of_a_bank_on_the_host_does_not_wait_for_the_device(optimizer, monkeypatch):
    with fake_gpu(monkeypatch) as trace:
        layer = build(optimizer=optimizer, rate=0.2, on_host=True, update_in_backward=False)
        layer.sample = partial(sample_on_host, layer.sampler)
        layer.optimizer.rows = torch.nn.Parameter(torch.empty(0, device=DEVICE))  # `data` moves no fake
        events = step(layer, trace)
        # The rows of the forward pass are dropped without an update that would write them back.
        staged = 1 + len(layer.row_optimizer.states)
        assert events.count("record_stream") == staged
        trace.clear()
        with _disable_current_modes():
            layer.optimizer.index = torch.arange(len(layer.optimizer.rows.grad))
        layer.optimizer.step()
        assert trace.events.count("record_stream") == staged
        assert "wait" not in trace.events


def test_the_row_numbers_of_16_bit_centers_belong_to_the_stream_that_copies_their_rows(monkeypatch):
    """The layer's stream waits for this one alone."""

    @contextlib.contextmanager
    def stream(stream):
        trace.events.append("copies")
        yield
        trace.events.append("copied")

    with fake_gpu(monkeypatch) as trace:
        monkeypatch.setattr(torch.cuda, "stream", stream)
        layer = build(on_host=True, **NARROW)
        layer.sample = partial(sample_on_host, layer.sampler)
        events = step(layer, trace)
    assert "arange" in events[events.index("copies") : events.index("copied")]
    assert events.count("record_stream") == 3  # centers, momentum, and their row numbers


def test_both_passes_run_with_the_layers_gpu_as_the_current_device(monkeypatch):
    """Triton launches kernels on the current device."""
    found = {}
    with fake_gpu(monkeypatch) as trace:
        layer = build()
        passes = layer._computation.of_torch

        def noted(original, *arguments):
            found[original.__name__] = trace.current
            return original(*arguments)

        for name in ("statistics", "add_feature_gradient", "add_center_gradient"):
            setattr(passes, name, partial(noted, getattr(passes, name)))
        step(layer, trace)
        assert found == {"statistics": 1, "add_feature_gradient": 1, "add_center_gradient": 1}
        assert trace.current == 0


@pytest.mark.parametrize("tile, tiles", [(64, 4), (256, 1)])
def test_the_device_has_work_while_the_host_checks_and_reduces_beside_an_update(tile, tiles, monkeypatch):
    """A later check would let a loss that is not finite change centers."""
    with fake_gpu(monkeypatch) as trace:
        layer = build(rate=1.0, tile=tile, num_classes=RANKS * 256)
        update = layer.row_optimizer.update

        def recorded(*arguments, **options):
            trace.events.append("update")
            update(*arguments, **options)
            trace.events.append("updated")

        layer.row_optimizer.update = recorded
        events = step(layer, trace)
    check, first_gradient = events.index("wait"), events.index("addmm_")
    updates = [place for place, event in enumerate(events) if event == "update"]
    assert len(updates) == tiles
    assert first_gradient < check < updates[0]
    # Every rank checks before it reduces, so that after an error no rank waits for the others there.
    assert check < events.index(REDUCE_SCATTER) < updates[-1]
    if tiles > 1:
        assert events.index("updated", updates[-2]) < events.index(REDUCE_SCATTER)


class Parallel(DistributedDataParallel):
    """Without reductions."""

    def __init__(self, module):
        torch.nn.Module.__init__(self)
        self.module, self.require_backward_grad_sync = module, True

    def forward(self, images):
        """Calls the module."""
        return self.module(images)


@pytest.mark.parametrize(
    "options, parts",
    [
        ({}, 1),
        ({"autocast": torch.bfloat16, "max_grad_norm": 5.0}, 1),
        ({"autocast": torch.float16}, 1),
        ({"gradient_acc": 2}, 2),
    ],
)
def test_the_backbone_begins_its_backward_pass_before_negatives_are_drawn(options, parts, monkeypatch):
    begun, draw = threading.Event(), sampling.draw_classes

    def backward(features, gradient):
        assert gradient.dtype == features.dtype
        begun.set()
        trace.events.append("backward")
        for parameter in engine.backbone.parameters():
            parameter.grad = torch.empty_like(parameter)

    monkeypatch.setattr(torch.Tensor, "backward", backward)
    with fake_gpu(monkeypatch) as trace:
        layer = build(embedding_size=512)
        with torch.device(DEVICE):
            backbone = get_model("small")
        optimizer = partial(build_optimizer, fused=True)
        engine = TorchEngine(Parallel(backbone), layer, lambda update: (0.1, 0.1), optimizer=optimizer, **options)
        batch = Batch(torch.zeros(B, 3, 112, 112, dtype=torch.uint8), np.arange(B))
        engine.step(batch)
        monkeypatch.setattr(sampling, "draw_classes", lambda *arguments: begun.wait(60) and draw(*arguments))
        begun.clear()
        trace.clear()
        engine.step(batch)
        assert len(layer.sampler.prefetch()) == layer.sampler.num_sample
    events = trace.events
    assert events.count("wait") == events.count("backward") == parts
    assert events.index("convolution") < events.index("wait") < events.index("backward")
    assert events[-1] != "backward", "the update of the backbone"


# Kernels and GB of a step, counted from shapes: the layer with E = 512 and 8 x 128 images, a backbone with 128 images.
# A change that moves one of them by a tenth has to explain it and update the number here.
LAYERS = {
    ("1 M classes a GPU", torch.float32): (8_000_000, 1.0, 1624, 136),
    ("1 M classes a GPU", torch.bfloat16): (8_000_000, 1.0, 1934, 160),
    ("10 M on 8, r = 0.1", torch.float32): (10_000_000, 0.1, 379, 20.1),
}
BACKBONES = {"mobilefacenet": (562, 27.5), "r50": (711, 60.3)}


@pytest.mark.parametrize("case", LAYERS)
def test_kernels_and_bytes_of_the_layer(case, monkeypatch):
    classes, rate, kernels, gigabytes = LAYERS[case]
    with fake_gpu(monkeypatch) as trace:
        layer = build(CosFace, SGD, rate, case[1], 0, 32_768, num_classes=classes, embedding_size=512)
        step(layer, trace, 128)
    assert (trace.kernels, trace.bytes / 1e9) == pytest.approx((kernels, gigabytes), rel=0.1)


@pytest.mark.parametrize("network", BACKBONES)
def test_kernels_and_bytes_of_a_backbone(network):
    """Forward pass, backward pass and update in float32, on a fake CPU, where autograd runs."""
    with FakeTensorMode():
        model = get_model(network)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, foreach=True)
        for _ in range(2):  # the first one allocates momentum
            with Trace("cpu") as trace:
                features = model(torch.empty(128, 3, 112, 112))
                features.backward(torch.empty_like(features))
                optimizer.step()
    assert (trace.kernels, trace.bytes / 1e9) == pytest.approx(BACKBONES[network], rel=0.1)
