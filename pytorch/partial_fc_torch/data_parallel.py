"""DistributedDataParallel with the options that the trainer needs.

Shapes: B local batch, E embedding.
"""

import inspect

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from .collectives import average_gradients_one_by_one
from .partial_fc import PartialFC

# Each rank keeps its running statistics, and the engine averages them. PyTorch 2.13 renamed the argument.
_PARAMETERS = inspect.signature(DistributedDataParallel).parameters
LOCAL_BUFFERS = {"forward_sync_buffers" if "forward_sync_buffers" in _PARAMETERS else "broadcast_buffers": False}
COMPRESSION = {torch.float16: fp16_compress_hook, torch.bfloat16: bf16_compress_hook}


def data_parallel(backbone: nn.Module, layer: PartialFC, gradient_dtype: torch.dtype = torch.float32) -> nn.Module:
    """Wraps the backbone in DistributedDataParallel, which broadcasts its weights; returns it unchanged on one rank.

    Args:
        backbone: any module that maps the inputs of a batch (normalized, if they are pixels) to embeddings (B, E), on
            its device.
        layer: PartialFC on the same device.
        gradient_dtype: type in which the ranks average the gradients: float32, bfloat16 or float16.
    """
    ranks = layer.collectives.size
    if ranks == 1:
        return backbone
    parallel = DistributedDataParallel(backbone, gradient_as_bucket_view=True, **LOCAL_BUFFERS)
    # The rounding of a sum over three or more ranks depends on an element's position in its bucket, and the buckets of
    # a process's first step differ from the later ones. Without buckets, a resumed training is the same bit for bit.
    if gradient_dtype in COMPRESSION:
        parallel.register_comm_hook(None, COMPRESSION[gradient_dtype])
    elif ranks > 2 and layer.device.type == "cpu":
        parallel.register_comm_hook(None, average_gradients_one_by_one)
    return parallel
