"""The order of a step's work on the streams of a GPU, and the faults that stream_order.py finds.

Only a layer with centers in host memory uses a second stream.
"""

from functools import partial

import pytest
import torch
from fake_gpu import DEVICE, NARROW, WRITTEN_FOR, build, sample_on_host, step
from stream_order import ordered_gpu
from torch.utils._python_dispatch import _disable_current_modes

import interpreted
from partial_fc_torch.layer.kernels import triton_passes
from partial_fc_torch.layer.optimizers import AdamW
from partial_fc_torch.layer.stores import host
from planted import planted

pytestmark = WRITTEN_FOR
KERNELS = {"layer_kernel": "mm", "dtype": "float16"}
# Fault -> a line of stores/host.py, and what is found without it
FAULTS = {
    "the layer does not wait for the copies": (
        "current.wait_stream(self._stream)",
        "does not wait for the stream of the copies",
    ),
    "the memory of the rows does not know the layer": (
        "staged.record_stream(current)",
        "goes back to the stream of the copies while the layer's stream uses it",
    ),
    "the copies do not wait for the update": (
        "self._stream.wait_event(updated)",
        "does not wait for the layer's stream",
    ),
}


class Launched:
    """A kernel that is not launched on a fake GPU: as if it wrote all its arguments."""

    def __init__(self, trace, kernel):
        self.trace, self.name = trace, kernel.__name__

    def __getitem__(self, grid):
        return lambda *arguments, **options: self.trace.access(self.name, [], [arguments, options])


def faults(monkeypatch, module=host, **arguments):
    """Returns what is found in three steps of a layer."""
    with ordered_gpu(monkeypatch, module) as trace:
        for name in ("unit_rows_kernel", "statistics_kernel", "logit_gradients_kernel", "update_kernel"):
            monkeypatch.setattr(triton_passes, name, Launched(trace, getattr(triton_passes, name)))
        layer = interpreted.with_kernels(build(**{"layer_kernel": "torch", **arguments}))
        if arguments.get("on_host"):
            layer.sample = partial(sample_on_host, layer.sampler)
        for _ in range(3):  # rows of the second and third are fetched in advance
            if not layer.update_in_backward:
                layer.optimizer.rows = torch.nn.Parameter(torch.empty(0, device=DEVICE))  # `data` moves no fake
            step(layer, trace)
            if not layer.update_in_backward:
                with _disable_current_modes():
                    layer.optimizer.index = torch.arange(len(layer.optimizer.rows.grad))
                layer.optimizer.step()
    return trace.faults


@pytest.mark.parametrize(
    "arguments",
    [
        {"on_host": True},
        {"on_host": True, "update_in_backward": False, "optimizer": AdamW},
        {"on_host": True, **NARROW},
        {"on_host": True, **KERNELS},
        {"on_host": True, "update_in_backward": False, **KERNELS},
    ],
)
def test_streams_keep_the_order_that_memory_needs(arguments, monkeypatch):
    assert faults(monkeypatch, **arguments) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault, monkeypatch, tmp_path):
    line, message = FAULTS[fault]
    module = planted(tmp_path / "planted", "partial_fc_torch.layer.stores", ("host.py", line, "pass"))("host")
    update_in_backward = fault != "the memory of the rows does not know the layer"  # an update would wait
    found = faults(monkeypatch, module, on_host=True, update_in_backward=update_in_backward)
    assert any(message in each for each in found), found
