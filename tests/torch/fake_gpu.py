"""A fake GPU and a fake group of ranks: tensors with shapes but no memory, on a machine that has neither.

PyTorch's FakeTensorMode computes the shape, type and device of each result, and raises an error if the host reads a
value or an operator mixes devices. The backend "fake" of torch.distributed does nothing.
"""

import contextlib
import ctypes
import warnings
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from partial_fc_torch import ArcFace, PartialFC
from partial_fc_torch.layer import exchange, margins, module, objectives
from partial_fc_torch.layer.optimizers import SGD
from partial_fc_torch.layer.stores import host

# The fakes use internals of PyTorch, which change.
WRITTEN_FOR = pytest.mark.skipif(torch.__version__ < "2.13", reason="fakes of GPUs are written for PyTorch 2.13")
DEVICE = "cuda:1"
RANK, RANKS = 1, 8
B, E, CLASSES = 4, 8, 1600  # of all ranks
NARROW = {"center_dtype": torch.bfloat16}
# Operators that allocate or reshape memory, without work for the device.
NO_KERNELS = ("prim::", "aten::empty", "aten::new_empty", "aten::detach", "aten::lift_fresh", "aten::_unsafe_view")
NO_FAKE = ("aten::_fused_sgd_",)  # works in place, and has no fake implementation
# Operators that access only a part of their largest argument.
BY_INDEX = ("aten::index", "aten::gather", "aten::scatter", "aten::embedding")


class Trace(TorchDispatchMode):
    """Records the operators of a step in order.

    Args:
        device: type of the device that computes.

    Attributes:
        current: number of the current device.
        events: names of operators on the device and of collectives, "wait" where the host waits for the device, and
            events that tests add.
        kernels: number of operators on the device that are not views.
        bytes: that they read and write, computed from the shapes of arguments and results: without any cache, and
            counting an operator with several passes as one.
    """

    def __init__(self, device="cuda"):
        super().__init__()
        self.device, self.current, self.recorded, self.waited = device, 0, 0, 0
        self.clear()

    def clear(self):
        """Forgets what was recorded."""
        self.events, self.kernels, self.bytes = [], 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function._schema.name
        result = None if name in NO_FAKE else function(*args, **(kwargs or {}))
        inputs = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        outputs = [each for each in tree_leaves(result) if isinstance(each, torch.Tensor)]
        on_device = [each for each in inputs + outputs if each.device.type == self.device]
        if function.is_view or name.startswith(NO_KERNELS) or not on_device:
            return result
        self.events.append(name.removeprefix("aten::"))
        if any(each.dim() and each.device.type != self.device for each in inputs + outputs):  # a number may be anywhere
            if not name.startswith(("aten::copy_", "aten::_to_copy")):
                raise AssertionError(f"{name} has tensors on the host and on the device")
            if not (kwargs or {}).get("non_blocking", False) and not (len(args) > 2 and args[2]):
                self.events.append("wait")
        elif name.startswith("aten::"):
            self.kernels += 1
            if name.startswith(BY_INDEX):
                whole = max(inputs, key=torch.Tensor.numel)
                inputs = [each for each in inputs if each is not whole]
                # It writes as many elements as its values have, or reads as many as the result has.
                outputs = [max(inputs, key=torch.Tensor.numel)] if name.endswith("_") else 2 * outputs
            self.bytes += sum(map(touched_bytes, inputs + outputs))
        return result


def touched_bytes(tensor):
    """Returns the bytes of a tensor in memory; expanded dimensions count once."""
    sizes = (size for size, stride in zip(tensor.shape, tensor.stride()) if stride)
    return torch.Size(sizes).numel() * tensor.element_size()


class Inline:
    """ThreadPoolExecutor without a thread, because fake tensors belong to the thread that made them."""

    def __init__(self, *arguments, **options):
        pass

    def submit(self, function, *arguments):
        """Calls the function."""
        done = Future()
        done.set_result(function(*arguments))
        return done


class Stream:
    """A stream; the trace records when the host waits for it, unless it has already waited for later work."""

    def __init__(self, trace):
        self._trace = trace
        self.wait_stream = self.wait_event = lambda other: None

    def record_event(self):
        """Returns an event."""
        self._trace.recorded += 1
        return SimpleNamespace(synchronize=partial(self._wait, self._trace.recorded))

    def _wait(self, number):
        if number > self._trace.waited:
            self._trace.waited = number
            self._trace.events.append("wait")


@contextlib.contextmanager
def guarded_devices():
    """A context in which PyTorch's C++ code can switch between missing GPUs, as it can between meta devices."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    guards = (ctypes.c_void_p * 15).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    cuda, meta = 1, 14  # of c10::DeviceType
    before, guards[cuda] = guards[cuda], guards[meta]  # a build with CUDA has one
    try:
        yield
    finally:
        guards[cuda] = before


@contextlib.contextmanager
def fake_gpu(monkeypatch, trace=None):
    """A context with fake GPUs; this process is rank 1 of 8 and has the second one. Yields its Trace.

    The host reads the values of a batch with labels 0, a loss of 0, and no overflow.
    """
    trace = trace or Trace()

    def statistics(copy):
        copy._copied.synchronize()
        with _disable_current_modes():
            if not copy._copy.dim():
                return 0.0
            return torch.zeros(copy._copy.shape, dtype=copy._copy.dtype)

    def numpy(tensor, original=torch.Tensor.numpy):
        with _disable_current_modes():  # of a tensor that is none of theirs they would make a fake
            return original(tensor)

    def exchange_device(number):
        if number < 0:
            return -1
        before, trace.current = trace.current, number
        return before

    def labels(of, labels):
        trace.events.append("wait")
        with _disable_current_modes():
            return torch.arange(len(labels)) * (of.num_classes // len(labels))

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # nor is anything known of a real one
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream(trace))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream(trace))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    for name in ("_exchange_device", "_maybe_exchange_device"):
        monkeypatch.setattr(torch.cuda, name, exchange_device)
    monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)
    monkeypatch.setattr(torch.Tensor, "numpy", numpy)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: trace.events.append("record_stream"))
    monkeypatch.setattr(exchange.HostCopy, "wait", statistics)
    monkeypatch.setattr(exchange.LayerExchange, "to_host", labels)
    monkeypatch.setattr(exchange.LayerExchange, "agree", lambda of, name, shape, error: shape)
    monkeypatch.setattr(exchange.LayerExchange, "_error", lambda *batch: None)  # reads values
    monkeypatch.setattr(module.ClassCenters, "_copied", lambda *layer: None)  # reads values
    monkeypatch.setattr(margins, "_try_forward", lambda *arguments: None)  # copies buffers, as fakes cannot be
    monkeypatch.setattr(objectives, "_try", lambda *arguments: None)  # reads values
    monkeypatch.setattr(host, "ThreadPoolExecutor", Inline)
    for moved in ("_take", "_put"):
        monkeypatch.setattr(host, moved, lambda *arguments: None)
    monkeypatch.setattr(module, "center_blocks", lambda *arguments: iter(()))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*CUDA is not available")  # autocast, which stays in float32
        torch.distributed.init_process_group("fake", store=FakeStore(), rank=RANK, world_size=RANKS)
        try:
            with guarded_devices(), torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True), trace:
                yield trace
        finally:
            torch.distributed.destroy_process_group()


def build(margin=ArcFace, optimizer=SGD, rate=0.2, dtype=torch.float32, cache=0, tile=64, **arguments):
    optimizer = optimizer() if optimizer else None
    sizes = {"num_classes": CLASSES, "embedding_size": E, "sample_rate": rate, "tile_classes": tile}
    sizes |= {"logits_cache_mb": cache, "layer_dtype": dtype, "device": DEVICE}
    layer = PartialFC(margin_softmax=margin(), optimizer=optimizer, **(sizes | arguments))
    layer.learning_rate = 0.1
    return layer


def step(layer, trace, batch=B, steps=1):
    """Some steps of a layer; returns the events of the last one."""
    for _ in range(steps):
        trace.clear()
        features = torch.empty(batch, layer.embedding_size, device=DEVICE)
        gradient, loss = layer.step(features, np.arange(batch))
    assert gradient.shape == features.shape and gradient.device == features.device
    assert loss.device.type == "cpu"
    return list(trace.events)


def sample_on_host(sampler, labels):
    """Like ClassCenters.sample; tensors on the host are no fakes."""
    with _disable_current_modes():
        return torch.from_numpy(sampler(labels.numpy())[0])
