"""Networks of arcface_torch, equal to plain functions of their published weights.

The functions below follow from the names and shapes of the weights and share no code with the product. Random numbers
of a training step are drawn in the order of arcface_torch: the patches, then the branches of each block.

Shapes: B images, N patches, D width, E embedding.
"""

import pytest
import torch
from torch.nn import functional as F

from partial_fc_torch.backbones import Options, get_model
from partial_fc_torch.backbones.recompute import Recomputed
from partial_fc_torch.backbones.vit import Size, VisionTransformer

MOMENTUM = 0.1  # of running statistics


def images(batch, side=112, seed=0):
    return 2 * torch.rand(batch, 3, side, side, generator=torch.Generator().manual_seed(seed)) - 1


def with_drawn_weights(model):
    """Weights that reveal mistakes: scales and slopes far from 1, statistics of their own."""
    draw = torch.Generator().manual_seed(3)
    for key, value in model.state_dict().items():
        if key.endswith("running_var"):
            value.uniform_(0.5, 2, generator=draw)
        elif value.is_floating_point() and value.dim() < 2:
            value.uniform_(-0.5, 1.5, generator=draw)
        elif value.is_floating_point():
            value.normal_(0, (2 / value[0].numel()) ** 0.5, generator=draw)
    return model


def batch_norm(state, name, data, eps, training=False):
    statistics = [None, None] if training else [state[f"{name}.running_mean"], state[f"{name}.running_var"]]
    return F.batch_norm(data, *statistics, state[f"{name}.weight"], state[f"{name}.bias"], training, MOMENTUM, eps)


def transformer(state, pixels, depth, heads=8, drop_path=0.0, mask=0.0):
    """Embeddings of a ViT; with a drop path or a mask those of a training step."""
    training = bool(drop_path or mask)
    patches = F.conv2d(pixels, state["patch_embed.proj.weight"], state["patch_embed.proj.bias"], stride=9)
    tokens = patches.flatten(2).transpose(1, 2) + state["pos_embed"]
    batch, count, width = tokens.shape
    left = int(count * (1 - mask))
    if mask:
        order = torch.argsort(torch.rand(batch, count), dim=1)
        tokens = torch.stack([image[places] for image, places in zip(tokens, order[:, :left])])

    def layer(name, data):
        return F.linear(data, state[f"{name}.weight"], state.get(f"{name}.bias"))

    def norm(name, data):
        return F.layer_norm(data, (width,), state[f"{name}.weight"], state[f"{name}.bias"], 1e-5)

    def dropped(branch, rate):
        if not rate:
            return branch
        return branch * torch.empty(batch, 1, 1).bernoulli_(1 - rate) / (1 - rate)

    for number in range(depth):
        block, rate = f"blocks.{number}", drop_path * number / (depth - 1)
        qkv = layer(f"{block}.attn.qkv", norm(f"{block}.norm1", tokens)).view(batch, left, 3, heads, width // heads)
        mixed = []
        for head in range(heads):
            query, key, value = qkv[:, :, :, head].unbind(2)
            mixed.append(torch.softmax(query @ key.transpose(1, 2) / (width / heads) ** 0.5, dim=2) @ value)
        tokens = tokens + dropped(layer(f"{block}.attn.proj", torch.cat(mixed, dim=2)), rate)
        inner = layer(f"{block}.mlp.fc1", norm(f"{block}.norm2", tokens)).clamp(0, 6)
        tokens = tokens + dropped(layer(f"{block}.mlp.fc2", inner), rate)
    tokens = norm("norm", tokens)
    if mask:
        every = state["mask_token"].repeat(batch, count, 1)
        tokens = torch.stack([full.index_put((places[:left],), few) for full, few, places in zip(every, tokens, order)])
    features = batch_norm(state, "feature.1", layer("feature.0", tokens.reshape(batch, -1)), 2e-5, training)
    return batch_norm(state, "feature.3", layer("feature.2", features), 2e-5, training)


def mobilefacenet(state, pixels, blocks):
    """Embeddings of a MobileFaceNet in inference; the weights of a depth-wise layer tell its number of groups."""

    def block(name, data, stride=1, padding=0):
        weight = state[f"{name}.layers.0.weight"]
        data = F.conv2d(data, weight, None, stride, padding, groups=data.shape[1] // weight.shape[1])
        data = batch_norm(state, f"{name}.layers.1", data, 1e-5)
        return F.prelu(data, state[f"{name}.layers.2.weight"]) if f"{name}.layers.2.weight" in state else data

    def bottleneck(name, data, stride=1):
        data = block(f"{name}.layers.1", block(f"{name}.layers.0", data), stride, 1)
        return block(f"{name}.layers.2", data)

    def residual(name, data, count):
        for number in range(count):
            data = data + bottleneck(f"{name}.layers.{number}", data)
        return data

    data = block("layers.0", pixels, 2, 1)
    data = block("layers.1", data, 1, 1) if blocks[0] == 1 else residual("layers.1", data, blocks[0])
    for stage in (1, 2, 3):
        data = residual(f"layers.{2 * stage + 1}", bottleneck(f"layers.{2 * stage}", data, 2), blocks[stage])
    features = block("features.layers.0", block("conv_sep", data)).flatten(1)
    return batch_norm(state, "features.layers.3", F.linear(features, state["features.layers.2.weight"]), 1e-5)


def test_a_transformer_of_published_size():
    model = with_drawn_weights(get_model("vit_t", num_features=24)).eval()
    pixels = images(2)
    with torch.no_grad():
        torch.testing.assert_close(model(pixels), transformer(model.state_dict(), pixels, 12), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name, blocks", [("mbf", (1, 4, 6, 2)), ("mbf_large", (2, 8, 12, 4))])
def test_mobilefacenet(name, blocks):
    model = with_drawn_weights(get_model(name, num_features=24)).eval()
    pixels = images(2)
    with torch.no_grad():
        expected = mobilefacenet(model.state_dict(), pixels, blocks)
        torch.testing.assert_close(model(pixels), expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item())


def small_transformer(drop_path=0.3, mask=0.25, recompute=False):
    """Three blocks on images of 48 x 48, of 25 patches."""
    torch.manual_seed(0)
    model = VisionTransformer(Options(8, 0.0, False, 48), Size(32, 3, recompute), drop_path, mask)
    return with_drawn_weights(model).train()


@pytest.mark.parametrize("drop_path, mask", [(0.3, 0.25), (0.3, 0.0), (0.0, 0.1)])
def test_a_training_step_of_a_transformer(drop_path, mask):
    """Embeddings and gradients, also of the token in place of the masked patches."""
    model, pixels = small_transformer(drop_path, mask), images(6, 48)
    state = {key: value.detach().clone().requires_grad_(value.is_floating_point()) for key, value in named(model)}
    weights = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(5)
    embeddings = model(pixels)
    embeddings.backward(weights)
    torch.manual_seed(5)
    expected = transformer(state, pixels, 3, drop_path=drop_path, mask=mask)
    expected.backward(weights)
    torch.testing.assert_close(embeddings, expected, rtol=1e-4, atol=1e-4)
    for key, value in model.named_parameters():
        assert (value.grad is None) == (key == "mask_token" and not mask), key
        if value.grad is not None:
            torch.testing.assert_close(value.grad, state[key].grad, rtol=1e-3, atol=1e-4, msg=key)


def named(model):
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}.items()


def test_activations_that_are_computed_again_change_nothing():
    """Also the branches that are dropped are the same."""
    found = []
    for recompute in (False, True):
        model = small_transformer(recompute=recompute)
        torch.manual_seed(5)
        embeddings = model(images(6, 48))
        embeddings.square().sum().backward()
        found.append([embeddings, *(parameter.grad for parameter in model.parameters())])
    assert all(torch.equal(kept, again) for kept, again in zip(*found))


@pytest.mark.parametrize("name, expected", [("vit_t", 0), ("vit_s", 0), ("vit_b", 24), ("vit_h", 48)])
def test_large_transformers_compute_activations_again(name, expected):
    with torch.device("meta"):
        blocks = get_model(name).blocks
    assert sum(isinstance(block.forward, Recomputed) for block in blocks) == expected


def test_attention_and_norms_compute_in_float32_under_autocast():
    model, dtypes = small_transformer(0.0, 0.0), {}
    for key, module in model.named_modules():
        module.register_forward_hook(lambda _, inputs, out, key=key: dtypes.update({key: out.dtype}))
    block = model.blocks[1].attn
    attended = []
    attend = block._attend
    block._attend = lambda *qkv: attended.append({each.dtype for each in qkv}) or attend(*qkv)
    with torch.autocast("cpu", torch.bfloat16):
        assert model(images(2, 48)).dtype == torch.float32
    assert attended == [{torch.float32}]
    assert dtypes["blocks.1"] == dtypes["norm"] == dtypes["feature.0"] == torch.float32
    assert dtypes["blocks.1.attn.qkv"] == dtypes["blocks.1.mlp.fc1"] == torch.bfloat16
