"""A backbone on several ranks: DistributedDataParallel, as a step of the trainer needs it.

Shapes: B local batch, E embedding.
"""

import inspect

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from .collectives import average_gradients_one_by_one
from .partial_fc import PartialFC

# Each rank has running statistics of its own batches, which the engine averages. PyTorch 2.13 renamed the argument.
_KNOWN = inspect.signature(DistributedDataParallel).parameters
OWN_BUFFERS = {"forward_sync_buffers" if "forward_sync_buffers" in _KNOWN else "broadcast_buffers": False}
COMPRESSION = {torch.float16: fp16_compress_hook, torch.bfloat16: bf16_compress_hook}


def data_parallel(backbone: nn.Module, layer: PartialFC, gradient_dtype: torch.dtype = torch.float32) -> nn.Module:
    """Returns the backbone as a step calls it; with several ranks in DistributedDataParallel, which broadcasts weights.

    Args:
        backbone: any module from the inputs of a batch, normalized if they are pixels, to embeddings (B, E), on its
            device.
        layer: PartialFC on the same device.
        gradient_dtype: in which the ranks average the gradients: float32, bfloat16 or float16.
    """
    ranks = layer.collectives.size
    if ranks == 1:
        return backbone
    parallel = DistributedDataParallel(backbone, gradient_as_bucket_view=True, **OWN_BUFFERS)
    # A rounded sum of three or more numbers depends on their place in a bucket, and the first step of a process has
    # other buckets than the following ones. Summed one by one, a resumed training is equal bit for bit.
    if gradient_dtype in COMPRESSION:
        parallel.register_comm_hook(None, COMPRESSION[gradient_dtype])
    elif ranks > 2 and layer.device.type == "cpu":
        parallel.register_comm_hook(None, average_gradients_one_by_one)
    return parallel
