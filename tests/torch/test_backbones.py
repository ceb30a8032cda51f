"""The backbones: names and shapes of the published state_dicts, sizes, precision, initial values.

Legend: B images in a batch, E embedding size.
"""

import pytest
import torch
from torch import nn

import default
from partial_fc_torch.backbones import NETWORKS, get_model
from partial_fc_torch.backbones.backbone import BATCH_NORMS

# Units of each stage, as published.
UNITS = {
    "r18": [2, 2, 2, 2],
    "r34": [3, 4, 6, 3],
    "r50": [3, 4, 14, 3],
    "r100": [3, 13, 30, 3],
    "r124": [3, 13, 40, 5],
    "r200": [6, 26, 60, 6],
}
FAST = ["r18", "mobilefacenet", "small", "vit_t"]
# Layers of the head, the last one the batch norm of the embedding.
HEAD = {
    "mobilefacenet": ["features.layers.0.layers.0", "features.layers.2", "features.layers.3"],
    "vit_t": ["feature.0", "feature.1", "feature.2", "feature.3"],
}
FROZEN = {
    "r18": {"features.weight"},
    "mobilefacenet": {"features.layers.3.weight"},
    "small": {"features.weight", "features.bias"},
}


def on_meta(name, **options):
    """A network with shapes and without numbers."""
    with torch.device("meta"):
        return get_model(name, **options)


def images(batch=2, side=112, seed=0):
    return 2 * torch.rand(batch, 3, side, side, generator=torch.Generator().manual_seed(seed)) - 1


def batch_norm(name, size):
    shapes = {f"{name}.{part}": (size,) for part in ("weight", "bias", "running_mean", "running_var")}
    return {**shapes, f"{name}.num_batches_tracked": ()}


def published_residual(units, embedding):
    """(name, shape) of a residual network of arcface_torch."""
    shapes = {"conv1.weight": (64, 3, 3, 3), **batch_norm("bn1", 64), "prelu.weight": (64,)}
    before = 64
    for stage in range(4):
        width = 64 * 2**stage
        for unit in range(units[stage]):
            name = f"layer{stage + 1}.{unit}"
            inputs = before if unit == 0 else width
            shapes.update(batch_norm(f"{name}.bn1", inputs))
            shapes[f"{name}.conv1.weight"] = (width, inputs, 3, 3)
            shapes.update(batch_norm(f"{name}.bn2", width))
            shapes[f"{name}.prelu.weight"] = (width,)
            shapes[f"{name}.conv2.weight"] = (width, width, 3, 3)
            shapes.update(batch_norm(f"{name}.bn3", width))
            if unit == 0:
                shapes[f"{name}.downsample.0.weight"] = (width, inputs, 1, 1)
                shapes.update(batch_norm(f"{name}.downsample.1", width))
        before = width
    shapes.update(batch_norm("bn2", 512))
    shapes["fc.weight"], shapes["fc.bias"] = (embedding, 512 * 7 * 7), (embedding,)
    return {**shapes, **batch_norm("features", embedding)}


def published_mobilefacenet(embedding, scale=1, blocks=(1, 4, 6, 2), bias=True):
    """(name, shape) of MobileFaceNet: the names of arcface_torch; its widths with a scale, else those of the paper."""
    shapes = {}

    def block(name, outputs, inputs, kernel, prelu=True):
        shapes[f"{name}.layers.0.weight"] = (outputs, inputs, kernel, kernel)
        shapes.update(batch_norm(f"{name}.layers.1", outputs))
        if prelu:
            shapes[f"{name}.layers.2.weight"] = (outputs,)

    def bottleneck(name, inputs, inner, outputs):
        block(f"{name}.layers.0", inner, inputs, 1)
        block(f"{name}.layers.1", inner, 1, 3)
        block(f"{name}.layers.2", outputs, inner, 1, prelu=False)

    def residual(name, count, width, inner):
        for number in range(count):
            bottleneck(f"{name}.layers.{number}", width, inner, width)

    narrow, wide = 64 * scale, 128 * scale
    block("layers.0", narrow, 3, 3)
    if blocks[0] == 1:
        block("layers.1", narrow, scale, 3)
    else:
        residual("layers.1", blocks[0], narrow, 128)
    bottleneck("layers.2", narrow, 128, narrow)
    residual("layers.3", blocks[1], narrow, 128)
    bottleneck("layers.4", narrow, 256, wide)
    residual("layers.5", blocks[2], wide, 256)
    bottleneck("layers.6", wide, 512, wide)
    residual("layers.7", blocks[3], wide, 256)
    block("conv_sep", 512, wide, 1)
    block("features.layers.0", 512, 1, 7, prelu=False)
    shapes["features.layers.2.weight"] = (embedding, 512)
    if bias:
        shapes["features.layers.2.bias"] = (embedding,)
    return {**shapes, **batch_norm("features.layers.3", embedding)}


def published_transformer(embedding, width, depth):
    """(name, shape) of a ViT of arcface_torch."""
    shapes = {"pos_embed": (1, 144, width), "mask_token": (1, 1, width)}

    def layer(name, outputs, *inputs):
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = (outputs, *inputs), (outputs,)

    layer("patch_embed.proj", width, 3, 9, 9)
    for number in range(depth):
        block = f"blocks.{number}"
        layer(f"{block}.norm1", width)
        shapes[f"{block}.attn.qkv.weight"] = (3 * width, width)
        layer(f"{block}.attn.proj", width, width)
        layer(f"{block}.norm2", width)
        layer(f"{block}.mlp.fc1", 4 * width, width)
        layer(f"{block}.mlp.fc2", width, 4 * width)
    layer("norm", width)
    shapes["feature.0.weight"] = (width, 144 * width)
    shapes.update(batch_norm("feature.1", width))
    shapes["feature.2.weight"] = (embedding, width)
    return {**shapes, **batch_norm("feature.3", embedding)}


EXPECTED = {
    **{name: published_residual(units, 512) for name, units in UNITS.items()},
    "mobilefacenet": published_mobilefacenet(512),
    "mbf": published_mobilefacenet(512, 2, bias=False),
    "mbf_large": published_mobilefacenet(512, 4, (2, 8, 12, 4), bias=False),
    "vit_mini": published_transformer(512, 128, 4),
    **dict.fromkeys(["vit_t", "vit_t_dp005_mask0"], published_transformer(512, 256, 12)),
    **dict.fromkeys(["vit_s", "vit_s_dp005_mask_0"], published_transformer(512, 512, 12)),
    **dict.fromkeys(["vit_b", "vit_b_dp005_mask_005"], published_transformer(512, 512, 24)),
    "vit_l_dp005_mask_005": published_transformer(512, 768, 24),
    "vit_h": published_transformer(512, 1024, 48),
}


def test_every_published_network_has_an_expected_list():
    assert {*EXPECTED, "small"} == set(NETWORKS)


def test_the_settings_know_every_network_without_importing_it():
    assert list(default.NETWORKS["torch"]) == list(NETWORKS)


@pytest.mark.parametrize("name", EXPECTED)
def test_names_and_shapes_are_those_of_published_files(name):
    state = on_meta(name).state_dict()
    # In this order, too: a list of tensors without names fits as well.
    assert [(key, tuple(value.shape)) for key, value in state.items()] == list(EXPECTED[name].items())


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("side", [112, 128])
def test_output_is_one_embedding_per_image(name, side):
    embeddings = get_model(name, num_features=48, image_size=side).eval()(images(3, side))
    assert (embeddings.shape, embeddings.dtype) == ((3, 48), torch.float32)


@pytest.mark.parametrize("name", [*FAST, "mbf"])
def test_every_parameter_is_trained_but_the_frozen_ones(name):
    torch.manual_seed(0)  # vit_t drops branches
    model = get_model(name, num_features=16)
    model(images(4)).backward(torch.randn(4, 16, generator=torch.Generator().manual_seed(1)))
    frozen = FROZEN.get(name, set())
    assert {key for key, value in model.named_parameters() if not value.requires_grad} == frozen
    for key, value in model.named_parameters():
        if key not in frozen:
            assert torch.isfinite(value.grad).all() and value.grad.abs().max() > 0, key
        elif key.endswith("weight"):
            assert (value == 1).all()


@pytest.mark.parametrize("name", FAST)
def test_dropout_acts_in_training_alone(name):
    data = images()
    model = get_model(name, dropout=0.4, num_features=16).eval()
    assert torch.equal(model(data), model(data))
    (dropout,) = (module for module in model.modules() if isinstance(module, nn.Dropout))
    counts = []
    dropout.register_forward_hook(lambda _, inputs, out: counts.extend(map(torch.count_nonzero, (inputs[0], out))))
    torch.manual_seed(0)
    dropout.train()
    model(data)
    assert abs(counts[1] / counts[0] - 0.6) < 0.06  # 4 standard deviations of the 1024 draws of mobilefacenet


@pytest.mark.parametrize("name", FAST)
def test_the_head_computes_in_float32_under_autocast(name):
    data = images()
    model = get_model(name, num_features=16).eval()
    dtypes = {}
    for key, module in model.named_modules():
        if isinstance(module, (nn.Conv2d, nn.Linear, nn.BatchNorm1d)):
            module.register_forward_hook(
                lambda _, inputs, out, key=key: dtypes.update({key: (inputs[0].dtype, out.dtype)})
            )
    full = model(data)
    with torch.autocast("cpu", torch.bfloat16):
        half = model(data)
    assert half.dtype == torch.float32 and not torch.equal(full, half)
    head = HEAD.get(name, ["fc", "features"])
    for key, (taken, given) in dtypes.items():
        assert given == (torch.float32 if key in head else torch.bfloat16), key
        assert taken == torch.float32 or key not in head, key
    assert nn.functional.cosine_similarity(full, half).min() > 0.99


def test_fp16_is_an_autocast_of_the_body():
    data = images()
    model = get_model("small", fp16=True, num_features=16).eval()
    seen = []
    model.layer3.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    assert model(data).dtype == torch.float32 and seen == [torch.float16]
    assert all(value.dtype == torch.float32 for value in model.parameters())


@pytest.mark.parametrize("name", FAST)
def test_epsilon_of_the_batch_norms(name):
    """1e-5 as published; others in MXNet's MobileFaceNet and the head of a ViT, whatever the others have."""
    for options, expected in (({}, 1e-5), ({"eps": 2e-5}, 2e-5)):
        model = get_model(name, **options)
        norms = [module for module in model.modules() if isinstance(module, BATCH_NORMS)]
        *body, last = (module.eps for module in norms)
        assert model.eps == expected and last == (2e-5 if name == "vit_t" else expected)
        assert set(body) == {{"mobilefacenet": 1e-3, "vit_t": 2e-5}.get(name, expected)}
        assert {module.momentum for module in norms} == {0.1}


def test_initial_values():
    """As published: N(0, 0.1^2) in residual networks, 0.02^2 in ViTs; the others as MXNet, variance 2 / fan-out."""
    torch.manual_seed(0)
    for key, value in get_model("r18").state_dict().items():
        if value.ndim == 4:
            assert abs(value.std() - 0.1) < 0.004, key
    for key, value in get_model("vit_t").state_dict().items():
        if key.endswith(("pos_embed", "mask_token")) or (value.ndim == 2):
            assert abs(value.std() / 0.02 - 1) < 0.15, key
        elif key.endswith("bias") and "patch_embed" not in key:
            assert (value == 0).all(), key
    for name in ("mobilefacenet", "mbf", "small"):
        for key, value in get_model(name).state_dict().items():
            if value.ndim > 1:
                fan_out = value.shape[0] * value.shape[2:].numel()
                assert abs(value.std() / (2 / fan_out) ** 0.5 - 1) < 0.1 or value.numel() < 5000, key
            elif key.endswith(("running_var", "bn1.weight", "bn2.weight", "features.weight")):
                assert (value == 1).all(), key
            elif key.endswith(("bias", "running_mean")):
                assert (value == 0).all(), key


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("r51", {}, "unknown network 'r51': did you mean 'r50'"),
        ("smal", {}, "did you mean 'small'"),
        ("r18", {"image_size": 113}, "image_size is 113, expected a multiple of 16"),
        ("r18", {"image_size": 0}, "image_size is 0, expected a multiple of 16"),
        ("r18", {"dropout": 1.0}, r"dropout is 1.0, expected a number in \[0, 1\)"),
        ("r18", {"num_features": 0}, "num_features is 0, expected a positive number"),
    ],
)
def test_invalid_arguments_are_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        get_model(name, **options)


@pytest.mark.parametrize("shape", [(2, 3, 96, 112), (2, 1, 112, 112), (3, 112, 112)])
def test_images_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match=r"the images have the shape \(.*\), expected \(B, 3, 112, 112\)"):
        get_model("small")(torch.zeros(shape))
