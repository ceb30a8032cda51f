"""The collectives of this process over torch.distributed.

Objects and control values travel over Gloo on the CPU, even where tensors travel over NCCL. A process without a process
group is rank 0 of 1.
"""

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from partial_fc.distributed.collectives import Collectives
from partial_fc.utils.text import plural

from .errors import error_message

# Messages of Gloo, NCCL and the store on the remaining ranks after one has exited. Other errors of NCCL, such as a full
# /dev/shm or two ranks on one GPU, have a cause on this host, and blaming a lost rank would hide it.
CONNECTION_ERRORS = (
    "gloo/transport",
    "Connection closed by ",
    "Connection reset by peer",
    "Broken pipe",
    "ncclRemoteError",
)

# Arguments of pip for drivers older than CUDA 13, which PyPI's builds require; see install-torch.sh.
OLDER_BUILD = "torch --index-url https://download.pytorch.org/whl/cu126"

# PyTorch 2.13 renamed both functions; the earlier names still work, with a warning.
_all_gather = dist.all_gather_single if hasattr(dist, "all_gather_single") else dist.all_gather_into_tensor
_reduce_scatter = dist.reduce_scatter_single if hasattr(dist, "reduce_scatter_single") else dist.reduce_scatter_tensor


class TorchBackend:
    """Collectives through torch.distributed, see partial_fc.distributed.collectives.Backend.

    PyTorch matches collectives by their order. Gathering objects compares the names, too.
    """

    error_message = staticmethod(error_message)
    user_errors = (dist.DistBackendError, torch.OutOfMemoryError)

    @property
    def rank(self) -> int:
        """The rank of this process in the job."""
        return dist.get_rank() if dist.is_initialized() else 0

    @property
    def size(self) -> int:
        """The number of ranks of the job."""
        return dist.get_world_size() if dist.is_initialized() else 1

    def gather_object(self, name: str, value: Any) -> list[Any]:
        """Returns the values of all ranks, by rank.

        Raises:
            RuntimeError: The ranks are in collectives of different names.
        """
        if self.size == 1:
            return [value]
        gathered: list[Any] = [None] * self.size
        dist.all_gather_object(gathered, (name, value), group=_cpu_group())
        names, values = zip(*gathered)
        if len(set(names)) > 1:
            raise RuntimeError(f"the ranks are in different collectives, by rank: {', '.join(names)}")
        return list(values)

    def max(self, name: str, value: float) -> float:
        """Returns the largest value of all ranks, as float32."""
        largest = torch.tensor(value, dtype=torch.float32)
        if self.size > 1:
            dist.all_reduce(largest, dist.ReduceOp.MAX, group=_cpu_group())
        return largest.item()

    def barrier(self, name: str) -> None:
        """Waits until all ranks have called it."""
        self.gather_object(name, None)

    def abort(self, code: int) -> None:
        """Does nothing: torchrun ends the other ranks when one exits with an error."""

    def is_connection_error(self, error: BaseException) -> bool:
        """Returns whether a collective failed because another rank exited."""
        if isinstance(error, dist.DistNetworkError):
            return True
        return isinstance(error, RuntimeError) and any(text in str(error) for text in CONNECTION_ERRORS)


def uses_gpu(backend: str) -> bool:
    """Returns whether a training with this backend computes on GPUs.

    Args:
        backend: "nccl", "gloo", or "" to choose by what the host has.

    Raises:
        ValueError: ``backend`` is "nccl" without GPUs; or the host has GPUs that the installed PyTorch cannot use.
    """
    if backend != "gloo" and not torch.cuda.is_available():
        _refuse_unused_gpus()
    if backend == "nccl" and not (torch.cuda.is_available() and dist.is_nccl_available()):
        reason = "PyTorch finds no GPU" if torch.version.cuda else f"PyTorch {torch.__version__} is built without CUDA"
        raise ValueError(f"backend is nccl, which needs GPUs, but {reason}: set backend=gloo, or install another build")
    return backend != "gloo" and torch.cuda.is_available()


def _refuse_unused_gpus() -> None:
    """Raises ValueError if the driver has GPUs: silently training on the CPU would look like a slow success."""
    gpus, version = ctypes.c_int(), ctypes.c_int()
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(gpus)) or not gpus.value:
        return
    driver.cuDriverGetVersion(ctypes.byref(version))
    try:
        torch.cuda.init()
    except (AssertionError, RuntimeError) as error:  # a build without CUDA raises AssertionError
        reason = error_message(error)
        cuda = f"CUDA {torch.version.cuda}" if torch.version.cuda else "the CPU"
        build = "torch" if version.value >= 13000 else OLDER_BUILD
        raise ValueError(
            f"PyTorch {torch.__version__}, built for {cuda}, cannot use this host's {plural(gpus.value, 'GPU')}, whose "
            f"driver has CUDA {version.value // 1000}.{version.value % 1000 // 10} ({reason}): install a build for it "
            f'with TORCH="{build}" bash setup-utils/install-torch.sh, or the same by pip; or update the driver; or '
            "train on the CPU with backend=gloo"
        ) from None


def all_gather_rows(rows: torch.Tensor, size: int) -> torch.Tensor:
    """Gathers rows (n, W) of all ranks in rank order: (size * n, W) on the same device. All ranks need the same n."""
    if size == 1:
        return rows
    gathered = rows.new_empty(size * rows.shape[0], *rows.shape[1:])
    _all_gather(gathered, rows.contiguous(), group=_group_of(rows))
    return gathered


def reduce_scatter_rows(rows: torch.Tensor, size: int) -> Callable[[], torch.Tensor]:
    """Starts to sum rows (size * n, W) over the ranks.

    Returns:
        A function that waits for this rank's n rows and returns them, on the same device.
    """
    if size == 1:
        return lambda: rows
    # Gloo implements reduce-scatter as an all-reduce, which moves twice the bytes. On the CPU each rank therefore
    # receives its rows from all ranks and sums them itself.
    on_cpu = rows.device.type == "cpu"
    received = torch.empty_like(rows) if on_cpu else rows.new_empty(rows.shape[0] // size, *rows.shape[1:])
    start = dist.all_to_all_single if on_cpu else _reduce_scatter
    work = start(received, rows.contiguous(), group=_group_of(rows), async_op=True)

    def wait() -> torch.Tensor:
        work.wait()
        return received.view(size, -1, *rows.shape[1:]).sum(dim=0) if on_cpu else received

    return wait


def average_tensors(tensors: list[torch.Tensor], size: int) -> None:
    """Replaces tensors on one device by their mean over the ranks, in place and in one all-reduce."""
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat, group=_group_of(flat))
    for tensor, mean in zip(tensors, (flat / size).split([tensor.numel() for tensor in tensors])):
        tensor.copy_(mean.view_as(tensor))


def average_gradients_one_by_one(_, bucket):
    """Averages each gradient of a bucket in a separate all-reduce; a hook of DistributedDataParallel."""
    # No annotations: DistributedDataParallel rejects those that are strings.
    reduced = [dist.all_reduce(gradient, async_op=True).get_future() for gradient in bucket.gradients()]
    return torch.futures.collect_all(reduced).then(lambda _: bucket.buffer().div_(dist.get_world_size()))


def _group_of(tensor: torch.Tensor):
    return _cpu_group() if tensor.device.type == "cpu" else dist.group.WORLD


def _cpu_group():
    """Returns a process group for CPU tensors; if the job has only NCCL, all ranks create one in the same call."""
    world = dist.group.WORLD
    return world if "cpu:" in dist.get_backend_config(world) else gloo_group(world)


@functools.lru_cache(maxsize=1)
def gloo_group(world):
    """Creates a process group over Gloo beside a ``world`` that has only NCCL."""
    return dist.new_group(backend="gloo")


default_collectives = Collectives(TorchBackend())
