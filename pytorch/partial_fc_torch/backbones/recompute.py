"""Activation checkpointing: blocks keep only their input, and recompute their activations in the backward pass."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint


def recompute_blocks(backbone: nn.Module) -> None:
    """Makes the blocks of a backbone recompute their activations; embeddings and gradients stay the same bit for bit.

    A block is a module with submodules in an outermost nn.Sequential or nn.ModuleList, such as a residual unit or a
    block of a transformer. Parameters keep their names.

    Raises:
        ValueError: The backbone has no block.
    """
    blocks = list(_blocks(backbone))
    if not blocks:
        raise ValueError(
            f"activation_checkpointing is set, but {type(backbone).__name__} has no nn.Sequential or nn.ModuleList of "
            "blocks: remove the setting"
        )
    for block in blocks:
        block.forward = Recomputed(block)


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    is_container = isinstance(module, (nn.Sequential, nn.ModuleList))
    for child in module.children():
        if not is_container:
            yield from _blocks(child)
        elif next(child.children(), None) is not None:
            yield child  # but not a single layer, which would save nothing: its output is the next layer's input


class Recomputed:
    """Replaces the forward method of a block: in training, the backward pass calls it a second time."""

    def __init__(self, block: nn.Module):
        self.block = block

    def __call__(self, *arguments, **options):
        """Returns the output of the block."""
        forward = partial(type(self.block).forward, self.block)
        if not torch.is_grad_enabled():
            return forward(*arguments, **options)
        # The second pass must not update running statistics again. A compiled graph never does, and takes no context.
        if not torch.compiler.is_compiling():
            options["context_fn"] = lambda: (nullcontext(), _fixed_statistics(self.block))
        return checkpoint(forward, *arguments, use_reentrant=False, **options)


@contextmanager
def _fixed_statistics(block: nn.Module) -> Iterator[None]:
    """A context in which batch norms neither update their running statistics nor count the batch."""
    norms = [module for module in block.modules() if isinstance(module, _BatchNorm)]
    saved = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum, norm.num_batches_tracked = 0.0, None
    try:
        yield
    finally:
        for norm, (momentum, batches) in zip(norms, saved):
            norm.momentum, norm.num_batches_tracked = momentum, batches
