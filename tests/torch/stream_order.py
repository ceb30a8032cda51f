"""Checks on fake GPUs that streams, the host and PyTorch's caching allocator keep the order that memory needs.

Two operators that access the same memory, one of which writes it, need an order: the same stream, a stream's wait for
another, or a wait of the host between them. Vector clocks show it (Lamport, 1978; Fidge, 1988; Mattern, 1988).
Memory without a tensor goes back to the stream that allocated it, which may give it to its next tensor at once. So all
operators of other streams must come before what that stream does next, unless the tensor knows them (record_stream).

In addition to fake_gpu.py, a collective counts as an operator of the current stream, and threads run in turn, with the
order that only `submit` and `result` give them. Pinned memory on the host is not checked. An own model,
because torch.cuda._sanitizer is private and has no allocator.
"""

import contextlib

import torch
from fake_gpu import NO_KERNELS, Inline, Trace, fake_gpu
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

from partial_fc_torch.layer import module
from partial_fc_torch.layer.stores import host


def merge(clock, other):
    """Adds to a clock (dict from streams to numbers of operators) what another one knows."""
    for stream, number in other.items():
        clock[stream] = max(clock.get(stream, 0), number)


class Event:
    """The work queued on a stream so far."""

    def __init__(self, trace, clock):
        self._trace, self.clock = trace, clock

    def synchronize(self):
        """The host waits."""
        self._trace.reclaim()
        merge(self._trace.host, self.clock)


class OrderedStream:
    """A stream with a clock: of each stream, the last operator that comes before the next one here."""

    def __init__(self, trace, name):
        self._trace, self.name, self.clock = trace, name, {}

    def record_event(self):
        """Returns an event."""
        return Event(self._trace, dict(self.clock))

    def wait_event(self, event):
        """The following operators wait for an event."""
        self._trace.reclaim()
        merge(self.clock, event.clock)

    def wait_stream(self, other):
        """The following operators wait for those of another stream so far."""
        self.wait_event(other.record_event())


class Block:
    """Memory that a stream has allocated."""

    def __init__(self, storage, stream, operator):
        self.owner, self.stream, self.operator = StorageWeakRef(storage), stream, operator
        self.reads, self.writes, self.recorded = {}, {}, set()  # last ones of each stream; streams of record_stream


class Order(Trace):
    """Notes which operator accesses which memory.

    Attributes:
        faults: descriptions of accesses without an order, and of memory that is freed too early.
        stream: the current stream.
        host: clock of the current thread: operators that it has waited for.
    """

    def __init__(self):
        super().__init__()
        self.stream, self.host, self.blocks, self.faults = OrderedStream(self, "the layer's stream"), {}, {}, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.reclaim()
        result = super().__torch_dispatch__(function, types, args, kwargs)
        if function.is_view:
            return result
        named = dict(zip((each.name for each in function._schema.arguments), args), **(kwargs or {}))
        written = [each.name for each in function._schema.arguments if each.alias_info and each.alias_info.is_write]
        name = function._schema.name
        works = not name.startswith(NO_KERNELS)
        read = [value for key, value in named.items() if key not in written]
        self.access(name, read if works else [], [*(named.get(key) for key in written), result if works else None])
        if not works:
            self._blocks(name, [result])
        return result

    def access(self, operator, read, written):
        """Notes an operator of the current stream, given trees of the tensors that it reads and writes."""
        written = self._blocks(operator, written)
        read = [block for block in self._blocks(operator, read) if block not in written]
        stream = self.stream
        merge(stream.clock, self.host)
        for block in read:
            self._require(operator, "writes", block)
        for block in written:
            self._require(operator, "reads", block)
            self._require(operator, "writes", block)
        stream.clock[stream] = stream.clock.get(stream, 0) + 1
        for block in read:
            block.reads[stream] = stream.clock[stream]
        for block in written:
            block.writes[stream] = stream.clock[stream]

    def reclaim(self):
        """Finds memory that no tensor has anymore."""
        for key, block in list(self.blocks.items()):
            if block.owner.expired():
                del self.blocks[key]
                known = dict(block.stream.clock)
                merge(known, self.host)
                for stream, number in [*block.reads.items(), *block.writes.items()]:
                    if known.get(stream, 0) < number and stream not in block.recorded:
                        self.faults.append(
                            f"memory of {block.operator} goes back to {block.stream.name} while {stream.name} uses it"
                        )

    def record_stream(self, tensor, stream):
        """See torch.Tensor.record_stream."""
        self.events.append("record_stream")
        for block in self._blocks("", [tensor]):
            block.recorded.add(stream)

    def _require(self, operator, kind, block):
        for stream, number in getattr(block, kind).items():
            if self.stream.clock.get(stream, 0) < number:
                self.faults.append(
                    f"{operator} on {self.stream.name} does not wait for {stream.name}, which {kind} {block.operator}"
                )

    def _blocks(self, operator, tensors):
        found = []
        for tensor in tree_leaves(tensors):
            if isinstance(tensor, torch.Tensor) and tensor.device.type == self.device and tensor.numel():
                storage = tensor.untyped_storage()
                if storage._cdata not in self.blocks:
                    self.blocks[storage._cdata] = Block(storage, self.stream, operator)
                found.append(self.blocks[storage._cdata])
        return found


@contextlib.contextmanager
def ordered_gpu(monkeypatch, host=host):
    """A context with a fake GPU, which yields its Order; ``host`` is the module of the banks in host memory."""
    trace = Order()

    class Worker(Inline):
        clock = {}

        def submit(self, function, *arguments):
            before, trace.host = (trace.host, trace.stream), {**self.clock, **trace.host}
            trace.stream = default
            done = super().submit(function, *arguments)
            self.clock, (trace.host, trace.stream) = trace.host, before
            result = done.result

            def joined():
                merge(trace.host, self.clock)
                return result()

            done.result = joined
            return done

    @contextlib.contextmanager
    def current(stream):
        before, trace.stream = trace.stream, stream
        yield
        trace.stream = before

    default = trace.stream
    with fake_gpu(monkeypatch, trace):
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: OrderedStream(trace, "the stream of the copies"))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: trace.stream)
        monkeypatch.setattr(torch.cuda, "stream", current)
        monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: trace.record_stream(tensor, stream))
        monkeypatch.setattr(module, "HostStore", host.HostStore)
        monkeypatch.setattr(host, "ThreadPoolExecutor", Worker)
        monkeypatch.setattr(host, "_take", lambda *arguments: None)
        monkeypatch.setattr(host, "_put", lambda rows, index, copy: copy.wait())
        yield trace
        trace.reclaim()
