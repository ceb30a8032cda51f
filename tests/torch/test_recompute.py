"""Activation checkpointing: equal bit for bit, with less in memory, under the same names."""

import copy

import pytest
import torch
from torch import nn

from partial_fc_torch import get_model
from partial_fc_torch.backbones.backbone import Options
from partial_fc_torch.backbones.iresnet import IResNet
from partial_fc_torch.backbones.recompute import recompute_blocks


class Transformer(nn.Module):
    """A user's module with two blocks with dropout."""

    def __init__(self):
        super().__init__()
        self.net = nn.Module()
        layers = [nn.TransformerEncoderLayer(16, 2, 64, dropout=0.3, batch_first=True) for _ in range(2)]
        self.net.blocks = nn.ModuleList(layers)

    def forward(self, images):
        tokens = images[..., ::4, ::4].flatten(2).transpose(1, 2).repeat_interleave(6, dim=2)[..., :16]
        for block in self.net.blocks:
            tokens = block(tokens)
        return tokens.mean(1)


def make(name):
    torch.manual_seed(0)
    makers = {"transformer": Transformer, "residual": lambda: IResNet(Options(8, 0.2, False, 32), (1, 1, 1, 1))}
    return makers[name]() if name in makers else get_model(name, num_features=8, image_size=32, dropout=0.2)


def step(model, autocast):
    """Returns embeddings, gradients, state, and bytes kept for the backward pass after two steps."""
    kept = []

    def keep(tensor):
        kept.append(tensor.untyped_storage().nbytes())
        return tensor

    torch.manual_seed(1)
    images = torch.randn(4, 3, 32, 32)
    for _ in range(2):
        with (
            torch.autocast("cpu", torch.bfloat16, enabled=autocast),
            torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        ):
            embeddings = model(images)
        embeddings.float().square().sum().backward()
    gradients = {key: value.grad for key, value in model.named_parameters() if value.requires_grad}
    return {"embeddings": embeddings.detach()}, gradients, model.state_dict(), sum(kept)


@pytest.mark.parametrize(
    "name, autocast", [("residual", False), ("small", False), ("small", True), ("transformer", False)]
)
def test_a_step_is_equal_bit_for_bit_and_keeps_less(name, autocast):
    plain, recomputed = make(name), make(name)
    recompute_blocks(recomputed)
    expected, found = step(plain, autocast), step(recomputed, autocast)
    for arrays, expected_arrays in zip(found[:3], expected[:3]):
        assert arrays.keys() == expected_arrays.keys()
        assert all(torch.equal(arrays[key], value) for key, value in expected_arrays.items())
    assert found[3] < 0.75 * expected[3]


def test_copies_compute_with_their_own_weights():
    model = make("small")
    recompute_blocks(model)
    copied = copy.deepcopy(model)
    nn.init.zeros_(copied.layer1[0].conv1.weight)
    images = torch.randn(2, 3, 32, 32)
    assert not torch.equal(copied.eval()(images), model.eval()(images))
    assert copied.layer1[0].forward.block is copied.layer1[0]


def test_a_backbone_without_blocks_is_refused():
    with pytest.raises(ValueError, match="Sequential has no .* blocks"):
        recompute_blocks(nn.Sequential(nn.Flatten(), nn.Linear(3, 4)))
