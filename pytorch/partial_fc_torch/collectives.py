"""The collectives of this process over torch.distributed.

Objects and control numbers travel on the CPU over Gloo, also where tensors travel over NCCL. A process without a
process group is rank 0 of 1.
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
# /dev/shm or two ranks on one GPU, have a cause on this host, which no lost rank explains.
CONNECTION_ERRORS = (
    "gloo/transport",
    "Connection closed by ",
    "Connection reset by peer",
    "Broken pipe",
    "ncclRemoteError",
)

# What pip installs for a driver older than CUDA 13, which PyPI's builds need; see install-torch.sh.
OLDER_BUILD = "torch --index-url https://download.pytorch.org/whl/cu126"

# PyTorch 2.13 renamed both functions; the earlier names still work, with a warning.
_all_gather = dist.all_gather_single if hasattr(dist, "all_gather_single") else dist.all_gather_into_tensor
_reduce_scatter = dist.reduce_scatter_single if hasattr(dist, "reduce_scatter_single") else dist.reduce_scatter_tensor


class TorchBackend:
    """Collectives through torch.distributed, see partial_fc.distributed.collectives.Backend.

    PyTorch matches collectives by their order. Their names are compared where objects are gathered.
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
            RuntimeError: the ranks are in collectives of different names.
        """
        if self.size == 1:
            return [value]
        gathered: list[Any] = [None] * self.size
        dist.all_gather_object(gathered, (name, value), group=_cpu_group())
        names = [each for each, _ in gathered]
        if len(set(names)) > 1:
            raise RuntimeError(f"the ranks are in different collectives, by rank: {', '.join(names)}")
        return [each for _, each in gathered]

    def max(self, name: str, value: float) -> float:
        """Returns the largest value of all ranks, as float32."""
        largest = torch.tensor(value, dtype=torch.float32)
        if self.size > 1:
            dist.all_reduce(largest, dist.ReduceOp.MAX, group=_cpu_group())
        return largest.item()

    def barrier(self, name: str) -> None:
        """Returns when all ranks have called it."""
        self.gather_object(name, None)

    def abort(self, code: int) -> None:
        """Returns: torchrun ends the other ranks when one exits with an error."""

    def is_connection_error(self, error: BaseException) -> bool:
        """Returns whether a collective failed because another rank left it."""
        if isinstance(error, dist.DistNetworkError):
            return True
        return isinstance(error, RuntimeError) and any(text in str(error) for text in CONNECTION_ERRORS)


def uses_gpu(backend: str) -> bool:
    """Returns whether a training with this backend, "nccl", "gloo" or "" for a choice, computes on GPUs.

    Raises:
        ValueError: "nccl" without GPUs; or there are GPUs, and the installed PyTorch cannot use them.
    """
    if backend != "gloo" and not torch.cuda.is_available():
        _refuse_unused_gpus()
    if backend == "nccl" and not (torch.cuda.is_available() and dist.is_nccl_available()):
        reason = "PyTorch finds no GPU" if torch.version.cuda else f"PyTorch {torch.__version__} is built without CUDA"
        raise ValueError(f"backend is nccl, which needs GPUs, but {reason}: set backend=gloo, or install another build")
    return backend != "gloo" and torch.cuda.is_available()


def _refuse_unused_gpus() -> None:
    """Raises ValueError if the driver has GPUs: training on the CPU instead would look like a slow success."""
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
    except (AssertionError, RuntimeError) as error:  # the former of a build without CUDA
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
    """Gathers rows (n, W) of all ranks in rank order: (size * n, W) on the same device. n must be the same on all."""
    if size == 1:
        return rows
    gathered = rows.new_empty(size * rows.shape[0], *rows.shape[1:])
    _all_gather(gathered, rows.contiguous(), group=_group_of(rows))
    return gathered


def reduce_scatter_rows(rows: torch.Tensor, size: int) -> Callable[[], torch.Tensor]:
    """Starts to sum rows (size * n, W) over the ranks: what waits for the n rows of this rank, on the same device.

    Gloo would run an all-reduce and move twice the bytes, so on the CPU each rank receives its rows of all ranks, and
    sums them.
    """
    if size == 1:
        return lambda: rows
    on_cpu = rows.device.type == "cpu"
    received = torch.empty_like(rows) if on_cpu else rows.new_empty(rows.shape[0] // size, *rows.shape[1:])
    start = dist.all_to_all_single if on_cpu else _reduce_scatter
    work = start(received, rows.contiguous(), group=_group_of(rows), async_op=True)

    def wait() -> torch.Tensor:
        work.wait()
        return received.view(size, -1, *rows.shape[1:]).sum(dim=0) if on_cpu else received

    return wait


def average_tensors(tensors: list[torch.Tensor], size: int) -> None:
    """Replaces tensors, all on one device, by their mean over the ranks, in place and in one all-reduce."""
    together = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(together, group=_group_of(together))
    for tensor, mean in zip(tensors, (together / size).split([tensor.numel() for tensor in tensors])):
        tensor.copy_(mean.view_as(tensor))


def average_gradients_one_by_one(_, bucket):
    """Averages each gradient of a bucket by an all-reduce of its own; a hook of DistributedDataParallel."""
    # DistributedDataParallel refuses annotations that are strings.
    reduced = [dist.all_reduce(gradient, async_op=True).get_future() for gradient in bucket.gradients()]
    return torch.futures.collect_all(reduced).then(lambda _: bucket.buffer().div_(dist.get_world_size()))


def _group_of(tensor: torch.Tensor):
    return _cpu_group() if tensor.device.type == "cpu" else dist.group.WORLD


def _cpu_group():
    """A process group for the CPU; all ranks create it at the same collective if the job's own has only NCCL."""
    world = dist.group.WORLD
    return world if "cpu:" in dist.get_backend_config(world) else gloo_beside(world)


@functools.lru_cache(maxsize=1)
def gloo_beside(world):
    """A process group over Gloo beside one that has only NCCL."""
    return dist.new_group(backend="gloo")


default_collectives = Collectives(TorchBackend())
