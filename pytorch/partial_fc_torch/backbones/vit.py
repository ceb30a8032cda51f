"""Vision transformers for faces (Dosovitskiy et al. 2021, arXiv 2010.11929), as in arcface_torch.

An image is divided into patches of 9 x 9 pixels. Each block consists of LayerNorm - attention and LayerNorm - MLP with
ReLU6. There is no class token: the head (FC - BN - FC - BN) reads all patches. In training, each branch of a block is
dropped for some images (drop path, arXiv 1603.09382), and some patches skip the blocks: a learned token replaces them
before the head. Layers have the names of the published state_dicts.

Shapes: B images, N patches, D width, H heads, E embedding.
"""

from collections import OrderedDict
from functools import partial
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from .backbone import Backbone, Options
from .recompute import recompute_blocks

PATCH, HEADS, MLP_RATIO = 9, 8, 4
HEAD_EPS = 2e-5  # of the head's batch norms, independent of Backbone.eps
STD = 0.02  # of initial weights


class Size(NamedTuple):
    """Width D, number of blocks, and whether they recompute their activations in the backward pass."""

    width: int
    depth: int
    recompute: bool = False


MINI = Size(128, 4)  # for training on a CPU; arcface_torch does not have it
TINY, SMALL = Size(256, 12), Size(512, 12)
BASE, LARGE, HUGE = Size(512, 24, True), Size(768, 24, True), Size(1024, 48, True)


class PatchEmbed(nn.Module):
    """Maps each patch to a vector; ignores pixels at the right and at the bottom that do not fill a patch."""

    def __init__(self, width: int):
        super().__init__()
        self.proj = nn.Conv2d(3, width, PATCH, PATCH)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(B, 3, S, S) -> (B, N, D)."""
        return self.proj(images).flatten(2).transpose(1, 2)


class Attention(nn.Module):
    """Attention of each patch to all patches, in float32 even under autocast."""

    def __init__(self, width: int):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width)
        self.width_of_head = width // HEADS

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(B, N, D) -> (B, N, D)."""
        qkv = self.qkv(tokens).reshape(-1, tokens.shape[1], 3, HEADS, self.width_of_head).permute(2, 0, 3, 1, 4)
        with torch.autocast(tokens.device.type, enabled=False):
            mixed = self._attend(*qkv.float().unbind())
        return self.proj(mixed.transpose(1, 2).flatten(2))

    def _attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """(B, H, N, D / H) each -> (B, H, N, D / H): softmax(q k^T / sqrt(D / H)) v."""
        if torch.jit.is_tracing():  # opset 11 has no operator for the fused form
            return (query @ key.transpose(2, 3) * self.width_of_head**-0.5).softmax(3) @ value
        return scaled_dot_product_attention(query, key, value)


class Block(nn.Module):
    """Attention and MLP, each with a residual connection; in training each is dropped for some of the images."""

    def __init__(self, width: int, drop_path: float):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = Attention(width)
        self.norm2 = nn.LayerNorm(width)
        layers = {
            "fc1": nn.Linear(width, MLP_RATIO * width),
            "act": nn.ReLU6(),
            "fc2": nn.Linear(MLP_RATIO * width, width),
        }
        self.mlp = nn.Sequential(OrderedDict(layers))
        self.drop_path = drop_path

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(B, N, D) -> (B, N, D)."""
        tokens = tokens + self._dropped(self.attn(self.norm1(tokens)))
        return tokens + self._dropped(self.mlp(self.norm2(tokens)))

    def _dropped(self, branch: torch.Tensor) -> torch.Tensor:
        """Sets the branch of some images to 0, and scales the others so that the expected value stays."""
        if not (self.training and self.drop_path):
            return branch
        kept = branch.new_empty(len(branch), 1, 1).bernoulli_(1 - self.drop_path)
        return branch * (kept / (1 - self.drop_path))


class VisionTransformer(Backbone):
    """A vision transformer.

    Args:
        options: see get_model.
        size: see Size.
        drop_path: probability of dropping a branch of the last block; grows linearly from 0 in the first block.
        mask: fraction of the patches, drawn anew for each image, that skip the blocks in training.
    """

    def __init__(self, options: Options, size: Size, drop_path: float, mask: float):
        super().__init__(options)
        patches = (options.image_size // PATCH) ** 2
        self.num_unmasked = int(patches * (1 - mask))
        self.patch_embed = PatchEmbed(size.width)
        self.pos_embed = nn.Parameter(torch.empty(1, patches, size.width))
        last = size.depth - 1
        self.blocks = nn.ModuleList(Block(size.width, drop_path * number / last) for number in range(size.depth))
        self.norm = nn.LayerNorm(size.width)
        self.dropout = nn.Dropout(options.dropout)
        self.feature = nn.Sequential(
            nn.Linear(patches * size.width, size.width, bias=False),
            nn.BatchNorm1d(size.width, eps=HEAD_EPS),
            nn.Linear(size.width, options.num_features, bias=False),
            nn.BatchNorm1d(options.num_features, eps=HEAD_EPS),
        )
        # Unused without a mask, but published files contain it.
        self.mask_token = nn.Parameter(torch.empty(1, 1, size.width), requires_grad=self.num_unmasked < patches)
        nn.init.normal_(self.mask_token, std=STD)
        nn.init.trunc_normal_(self.pos_embed, std=STD)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=STD)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        if size.recompute:
            recompute_blocks(self)

    def body(self, images: torch.Tensor) -> torch.Tensor:
        """(B, 3, S, S) -> (B, N, D)."""
        tokens = self.patch_embed(images) + self.pos_embed
        order = None
        if self.training and self.num_unmasked < tokens.shape[1]:
            # (B, N), a random order of each image's patches, of which the first ones go through the blocks.
            order = torch.rand(tokens.shape[:2], device=tokens.device).argsort(dim=1)
            tokens = _rows(tokens, order[:, : self.num_unmasked])
        for block in self.blocks:
            tokens = block(tokens)
        tokens = self.norm(tokens.float())
        if order is None:
            return tokens
        masked = self.mask_token.expand(len(tokens), order.shape[1] - self.num_unmasked, -1)
        return _rows(torch.cat([tokens, masked], dim=1), order.argsort(dim=1))

    def head(self, maps: torch.Tensor) -> torch.Tensor:
        """(B, N, D) -> (B, E)."""
        return self.feature(self.dropout(maps.flatten(1)))


def _rows(tokens: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Gathers rows of each image: (B, N, D), (B, n) -> (B, n, D)."""
    return tokens.gather(1, indices[:, :, None].expand(-1, -1, tokens.shape[2]))


NETWORKS = {
    "vit_mini": partial(VisionTransformer, size=MINI, drop_path=0, mask=0),
    "vit_t": partial(VisionTransformer, size=TINY, drop_path=0.1, mask=0.1),
    "vit_t_dp005_mask0": partial(VisionTransformer, size=TINY, drop_path=0.05, mask=0),
    "vit_s": partial(VisionTransformer, size=SMALL, drop_path=0.1, mask=0.1),
    "vit_s_dp005_mask_0": partial(VisionTransformer, size=SMALL, drop_path=0.05, mask=0),
    "vit_b": partial(VisionTransformer, size=BASE, drop_path=0.1, mask=0.1),
    "vit_b_dp005_mask_005": partial(VisionTransformer, size=BASE, drop_path=0.05, mask=0.05),
    "vit_l_dp005_mask_005": partial(VisionTransformer, size=LARGE, drop_path=0.05, mask=0.05),
    "vit_h": partial(VisionTransformer, size=HUGE, drop_path=0.1, mask=0),
}
